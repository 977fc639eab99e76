"""What `make bench` runs: measures our overheads and prints them beside their bounds.

Compare ratios, never the raw times: those are this machine's, at this moment.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import against
import client_memory
import docker_overhead
import help_time
import plan_cost
import scoring_overhead
from measure import Row, fsync_ms


class Part(NamedTuple):
    """Something that can be measured alone, and why it cannot be here."""

    measure: Callable[[bool], list[Row]]
    why_not: Callable[[], str | None] = lambda: None


PARTS = {
    "docker": Part(docker_overhead.measure, docker_overhead.why_not),
    "scoring": Part(scoring_overhead.measure, docker_overhead.why_not),
    "memory": Part(client_memory.measure),
    "help": Part(help_time.measure),
    "plan": Part(plan_cost.measure),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and with --check tell by the exit code whether all bounds were kept."""
    options = parse(arguments)
    wanted = [options.only] if options.only else list(PARTS)
    if options.against:
        rows = compare_with(options.against, wanted, options.quick)
    else:
        rows = [row for name in wanted for row in measure(name, options.quick)]
    print(as_json(rows) if options.json else as_table(rows))
    return int(options.check and any(row.is_over for row in rows))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of this program."""
    parser = argparse.ArgumentParser(prog="bench/run.py", description="Measure our overheads against their bounds.")
    parser.add_argument("--only", choices=PARTS, help="measure this part alone")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: minutes become seconds, noise grows")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bound is missed")
    parser.add_argument("--against", metavar="REV", help="compare with another revision of this repository instead")
    return parser.parse_args(arguments)


def measure(name: str, quick: bool) -> list[Row]:
    """A part's rows; none, and a line saying why, when it cannot be measured here."""
    reason = PARTS[name].why_not()
    if reason is not None:
        say(f"{name}: skipped: {reason}")
        return []
    say(f"{name}: measuring")
    return PARTS[name].measure(quick)


def compare_with(revision: str, wanted: Sequence[str], quick: bool) -> list[Row]:
    """New over old for every part that can be compared."""
    rows = []
    with against.checked_out(revision) as tree:
        for name in wanted:
            if name not in against.SAMPLES:
                say(f"{name}: skipped: not compared between revisions")
                continue
            say(f"{name}: measuring both trees")
            try:
                rows += against.compare(name, tree, quick)
            except against.SampleFailed as exc:
                say(f"{name}: skipped: cannot be compared with {revision}: {exc}")
    return rows


def say(text: str) -> None:
    """Progress goes to stderr: stdout carries the answer alone."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def as_table(rows: Sequence[Row]) -> str:
    """For people."""
    lines = [
        f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, fsync {fsync_ms():.1f} ms; medians over rounds",
        "",
    ]
    lines.append(f"{'what':<44} {'value':>9}  {'bound':>7}  {'':<4}  made from")
    for row in rows:
        bound = "-" if row.bound is None else f"{row.bound:g} {row.unit}"
        verdict = "" if row.bound is None else "over" if row.is_over else "ok"
        lines.append(f"{row.name:<44} {row.value:>6.2f} {row.unit:<2}  {bound:>7}  {verdict:<4}  {row.made_from}")
    return "\n".join(lines)


def as_json(rows: Sequence[Row]) -> str:
    """For scripts."""
    machine = {"cpus": os.cpu_count(), "load": os.getloadavg()[0], "fsync_ms": fsync_ms()}
    return json.dumps({"schema": 1, "machine": machine, "rows": [row.to_json() for row in rows]}, indent=2)


if __name__ == "__main__":
    sys.exit(main())
