"""What is missing of a batch, and whether it can still be done: `resume` before anything is run.

A run is named by its content. What a benchmark file or a task says now must give the same names as when the batch was
made; `parallel`, retries and the like are no part of them. Otherwise the difference is told, and nothing is done.
"""

import difflib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollouts.errors import ConfigError
from rollouts.plan import RunSpec
from rollouts.planning import Plan, plan_batch
from rollouts.results import UNFINISHED, RunResult, Status
from rollouts.scoring.record import load_evaluation
from rollouts.scoring.verdict import Outcome
from rollouts.store import TASKS, BatchPlace, BatchState, DataRoot, shown_path
from rollouts.terminal import counted

MAX_DIFF_LINES = 60


@dataclass(frozen=True)
class ResumeOptions:
    """What this one command asks for."""

    parallel: int | None = None
    retry_failed: bool = False
    """Also do again what failed through the agent's own doing."""
    force: bool = False
    """Go on though the benchmark or its tasks changed."""
    config: Path | None = None
    """The benchmark file, when it is not the one that the batch names."""
    score: bool = False
    """Also score what has no verdict."""


@dataclass(frozen=True)
class Resumption:
    """What is left to do of a batch."""

    plan: Plan
    """The missing runs alone, with their numbers in the batch."""
    kept: int
    """How many runs are left as they are."""
    replanned: tuple[RunSpec, ...]
    """Those of the missing runs that are not what they were."""
    unscored: tuple[RunSpec, ...]
    """Runs that are kept and have no verdict, when verdicts are wanted."""
    warnings: tuple[str, ...]
    changed: bool


def plan_resume(root: DataRoot, place: BatchPlace, state: BatchState, options: ResumeOptions) -> Resumption:
    """Find the missing runs in the benchmark as it is now; raises ConfigError with the difference if it is another."""
    config = options.config or _config(root, place, state)
    header = state.header
    plan = plan_batch(config, backend=header["backend"], parallel=options.parallel, only=header.get("only"))
    found = _match(state.results.values(), plan.specs)
    if found.changed and not options.force:
        raise ConfigError(*_difference(place, plan, found))
    missing, replanned, unscored = [], [], []
    for result in state.results.values():
        spec = found.specs.get(result.run_id)
        if spec is None:
            continue
        if _is_missing(result, options.retry_failed):
            missing.append(spec)
            if spec.key != result.key:
                replanned.append(spec)
        elif options.score and not _has_verdict(root.runs / result.run_id):
            unscored.append(spec)
    benchmark = plan.benchmark.model_copy(update={"name": place.name})
    rest = replace(plan, benchmark=benchmark, specs=tuple(missing))
    kept = len(state.results) - len(missing)
    return Resumption(rest, kept, tuple(replanned), tuple(unscored), _warnings(state, found), found.changed)


def _config(root: DataRoot, place: BatchPlace, state: BatchState) -> Path:
    """The file that the batch was made from, as it is now; the batch's own copy when it is gone."""
    named, began_in = Path(str(state.header.get("config", ""))), Path(str(state.header.get("directory", ".")))
    for path in (named, root.path.parent / named):
        if path.is_file():
            return path
    if began_in.resolve() != Path.cwd():
        advice = f"resume it there, or name the file: run FILE --resume {place.stamp}"
        raise ConfigError(f"{shown_path(place.folder)}: was begun in {began_in}, where its paths lead from; {advice}")
    return place.folder / "config.toml"


def _is_missing(result: RunResult, retry_failed: bool) -> bool:
    return result.status in UNFINISHED or (retry_failed and result.status is not Status.LAUNCHED)


def _has_verdict(run: Path) -> bool:
    known = load_evaluation(run)
    return known is not None and known["outcome"] != Outcome.ERROR


@dataclass(frozen=True)
class _Match:
    """The batch's runs beside those that the benchmark asks for now."""

    specs: Mapping[str, RunSpec]
    """By run id, with the run's number."""
    different: int
    """Runs of other content than before."""
    gone: int
    """Runs that the benchmark does not ask for any more."""
    added: int
    """Runs that it asks for now and the batch does not have."""

    @property
    def changed(self) -> bool:
        return bool(self.different or self.gone or self.added)


def _match(results: Iterable[RunResult], specs: Sequence[RunSpec]) -> _Match:
    """By content; what is left over on both sides, by task, model, agent and turn."""
    by_key = {spec.key: spec for spec in specs}
    found: dict[str, RunSpec] = {}
    rest = []
    for result in results:
        spec = by_key.pop(result.key, None)
        if spec is None:
            rest.append(result)
        else:
            found[result.run_id] = _numbered(spec, result)
    alike: dict[tuple[object, ...], list[RunSpec]] = defaultdict(list)
    for spec in by_key.values():
        alike[spec.task.task_id, spec.model, spec.agent, spec.rollout].append(spec)
    paired = 0
    for result in rest:
        candidates = alike[result.task_id, result.model, result.agent, result.rollout]
        if candidates:
            found[result.run_id] = _numbered(candidates.pop(0), result)
            paired += 1
    return _Match(found, paired, len(rest) - paired, len(by_key) - paired)


def _numbered(spec: RunSpec, result: RunResult) -> RunSpec:
    return replace(spec, index=int(result.run_id.rpartition("-")[2]))


def _warnings(state: BatchState, found: _Match) -> tuple[str, ...]:
    lines = []
    if found.different:
        lines.append(f"{counted(found.different, 'run')} not what they were when the batch was made")
    if found.gone:
        unfinished = [r for r in state.results.values() if r.run_id not in found.specs and r.status in UNFINISHED]
        lines.append(
            f"{counted(found.gone, 'run')} not in the benchmark any more, {len(unfinished)} of them unfinished"
        )
    if found.added:
        lines.append(
            f"{counted(found.added, 'run')} new in the benchmark and not part of this batch; `run` makes another"
        )
    return tuple(lines)


def _difference(place: BatchPlace, plan: Plan, found: _Match) -> list[str]:
    """What changed since the batch was made, for people."""
    counts = ((found.different, "not what they were"), (found.gone, "gone"), (found.added, "new"))
    told = ", ".join(f"{counted(count, 'run')} {what}" for count, what in counts if count)
    head = f"{shown_path(place.folder)}: the benchmark changed since this batch was made: {told}"
    advice = "put it back as it was, start a new batch with `run`, or go on with what is missing as it is now: --force"
    return [head, *_config_difference(place, plan.config), *_task_difference(place, plan.specs), advice]


def _config_difference(place: BatchPlace, config: Path) -> list[str]:
    before = (place.folder / "config.toml").read_text(errors="replace").splitlines()
    after = config.read_text(errors="replace").splitlines()
    lines = list(difflib.unified_diff(before, after, "when the batch was made", shown_path(config), n=1, lineterm=""))
    left_out = len(lines) - MAX_DIFF_LINES
    return lines[:MAX_DIFF_LINES] + ([f"… {counted(left_out, 'more line')}"] if left_out > 0 else [])


def _task_difference(place: BatchPlace, specs: Sequence[RunSpec]) -> list[str]:
    """Which parts of which tasks are not what they were."""
    try:
        known: Mapping[str, Any] = json.loads((place.folder / TASKS).read_text())
        tasks = {shown_path(spec.task.folder): spec.task for spec in specs}
        return [
            f"{word}: {folder}/{part}"
            for folder, task in tasks.items()
            if folder in known
            for part, word in _changed_parts(known[folder], task.parts)
        ]
    except (OSError, ValueError, TypeError, AttributeError):
        return []  # damaged or missing: the rest of the difference is told all the same


def _changed_parts(before: Mapping[str, str], after: Mapping[str, str]) -> list[tuple[str, str]]:
    names = sorted({**before, **after})
    words = {name: "gone" if name not in after else "new" if name not in before else "changed" for name in names}
    return [(name, words[name]) for name in names if before.get(name) != after.get(name)]
