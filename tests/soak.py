"""Batches that are killed again and again: started as a user would, and watched through their journals.

How much is tried: a short form with every `make test`, all of it with `make soak`.
"""

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.command_line import SCRIPT, Project

FULL = os.environ.get("ROLLOUTS_SOAK") == "full"
PATIENCE_S = 300.0
"""How long something may take that takes moments on an idle machine."""
Process = subprocess.Popen[bytes]


def start(project: Project, *arguments: str, env: Mapping[str, str] | None = None, script: str = "") -> Process:
    """Start the command in a project and return at once; `script` is Python to start it with."""
    command = [sys.executable, *(["-c", script] if script else [str(SCRIPT)]), *arguments]
    environ = {name: value for name, value in os.environ.items() if name not in ("ROLLOUTS_DATA", "SANDBOX_BACKEND")}
    environ.update(env or {})
    with (project.folder / "said.txt").open("ab") as said:
        return subprocess.Popen(command, cwd=project.folder, env=environ, stdout=said, stderr=said)


def said(project: Project) -> str:
    """What all commands that were started there said, one behind the other."""
    return (project.folder / "said.txt").read_text(errors="replace")


def wait_for(condition: Callable[[], object], what: str, *processes: Process) -> None:
    """Return once `condition` holds; none of the processes may end before."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        assert all(process.poll() is None for process in processes), f"ended before: {what}"
        time.sleep(0.02)


def end(*processes: Process) -> None:
    """Kill what may still run, and bury it."""
    for process in processes:
        process.kill()
        process.wait()


def batch_folder(project: Project, name: str = "bench") -> Path:
    """The one batch of that name."""
    (found,) = (project.folder / "data/rollouts" / name).iterdir()
    return found


def events(project: Project, name: str = "bench") -> list[dict[str, Any]]:
    """The whole lines of the journal, of a batch that may not be there yet."""
    with contextlib.suppress(OSError, ValueError):
        text = (batch_folder(project, name) / "events.jsonl").read_bytes()
        return [json.loads(line) for line in text.split(b"\n")[:-1]]
    return []


def ready(project: Project) -> int:
    """How many runs have said `ready` in their present attempt."""
    logs = project.folder.glob("data/runs/*/logs/agent.log")
    return sum(b"ready" in log.read_bytes() for log in logs)


@dataclass
class Soak:
    """Starts a batch, kills whoever works on it, has another go on with it, until all is done."""

    project: Project
    backend: str
    env: Mapping[str, str]
    most_between: int
    """A kill comes after 1 to so many more runs have ended: there is always progress, however slow the machine."""
    limit_s: float
    seed: int
    faults: dict[int, Callable[[], None]] = field(default_factory=dict)
    """What else is done to it: once so many runs have ended, while it works."""
    kills: int = 0

    def run(self) -> int:
        """The exit code of the one that was let finish."""
        dice, deadline = random.Random(self.seed), time.monotonic() + self.limit_s
        arguments = ["run", "bench.toml", "--backend", self.backend]
        while True:
            process = start(self.project, *arguments, env=self.env)
            try:
                self._attend(process, self._ended() + dice.randint(1, self.most_between), deadline)
                if process.poll() is not None:
                    return process.returncode
                time.sleep(dice.uniform(0, 0.2))  # not always just behind the end of a run
            finally:
                end(process)
            self.kills += 1
            arguments = ["resume", "bench", "--latest"]

    def _attend(self, process: Process, ended: int, deadline: float) -> None:
        """Return when so many runs have ended, or the process has."""
        begun = self._started()
        while process.poll() is None and (now := self._ended()) < ended:
            assert time.monotonic() < deadline, f"not done in time; {now} ended; {said(self.project)[-3000:]}"
            due = [at for at in self.faults if at <= now and self._started() > begun]
            for at in due:
                self.faults.pop(at)()
            time.sleep(0.01)

    def _ended(self) -> int:
        """How many runs are done for good."""
        return launches(self.project).total()

    def _started(self) -> int:
        return sum(event["event"] == "started" for event in events(self.project))


def launches(project: Project) -> Counter[str]:
    """How often each run was told to have ended well."""
    ended = [event["run"] for event in events(project) if event["event"] == "ended"]
    return Counter(run["run_id"] for run in ended if run["status"] == "launched")


def check_complete(project: Project, runs: int, also: Sequence[str] = ()) -> None:
    """Every run is finished exactly once, all files agree, and nothing half-made is left.

    Attempts may have ended as `sandbox_failed` before, or as what is in `also`.
    """
    manifest, folder = project.manifest(), batch_folder(project)
    ids = [result["run_id"] for result in manifest["results"]]
    assert len(set(ids)) == runs
    assert launches(project) == Counter(ids)
    assert {result["status"] for result in manifest["results"]} == {"launched"}
    assert manifest["finished_at"] is not None
    assert (folder / "runs.txt").read_text().split() == [result["run_dir"] for result in manifest["results"]]
    _check_order(events(project), ("launched", "sandbox_failed", *also))
    for result in manifest["results"]:
        assert b"+done" in project.patch(result)
        assert json.loads((folder / "task_results" / f"{result['run_id']}.json").read_text()) == result
        assert json.loads((project.folder / result["run_dir"] / "result.json").read_text()) == result
    assert stale(project.folder / "data") == []


def _check_order(journal: Sequence[Mapping[str, Any]], allowed: Sequence[str]) -> None:
    """Nothing was done to a run after its good end, and no fault of the machine was booked on the agent."""
    done: set[str] = set()
    for event in journal:
        if event["event"] == "started":
            assert event["run_id"] not in done
        elif event["event"] == "ended":
            assert event["run"]["status"] in allowed
            if event["run"]["status"] == "launched":
                done.add(event["run"]["run_id"])


def stale(data: Path) -> list[str]:
    """Names below `data` that only unfinished work has."""
    locks = (".lock", ".eval.lock")
    found = [path for path in data.rglob(".*") if path.name not in locks and "attempts" not in path.parts]
    return [str(path) for path in found if "cache" not in path.relative_to(data).parts]
