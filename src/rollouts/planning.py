"""From a benchmark file on disk to a checked plan, and what `--dry-run` says about it. Creates nothing."""

import fnmatch
import glob
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollouts.agents import agent_mistakes, open_agent
from rollouts.backends import open_backend
from rollouts.config import Benchmark, TaskEntry, choose_backend, choose_docker_settings, load_benchmark
from rollouts.errors import BackendUnavailable, ConfigError
from rollouts.plan import RunSpec, make_plan
from rollouts.prepare import Preparation
from rollouts.store import DataRoot, shown_path
from rollouts.task_folder import find_tasks, load_task
from rollouts.tasks import Task


@dataclass(frozen=True)
class Plan:
    """A benchmark file, read and checked: what `run` would do."""

    config: Path
    benchmark: Benchmark
    specs: tuple[RunSpec, ...]
    backend: str
    only: str | None = None
    """The glob that picked the runs out of the file's."""

    @property
    def parallel(self) -> int:
        """How many runs at once."""
        return self.benchmark.parallel

    @property
    def tasks(self) -> int:
        """How many `[[tasks]]` of the file are run: what the first line of `run` counts."""
        return len({spec.entry for spec in self.specs})

    def first_of_each_image(self) -> list[RunSpec]:
        """One spec for each distinct box, in the order in which they are needed."""
        return list({(spec.task.digest, spec.agent): spec for spec in reversed(self.specs)}.values())[::-1]


def plan_batch(config: Path, *, backend: str | None, parallel: int | None, only: str | None) -> Plan:
    """Read and check everything a user wrote. Touches no engine and creates nothing."""
    benchmark = load_benchmark(config)
    chosen = choose_backend(backend, os.environ, benchmark)
    changes: dict[str, object] = {"docker": choose_docker_settings(os.environ, benchmark.docker)}
    if parallel is not None:
        changes["parallel"] = parallel
    changes["tasks"] = tuple(_with_recording_found(entry, config) for entry in benchmark.tasks)
    benchmark = benchmark.model_copy(update=changes)
    found = [f"{config}: {line}" for line in agent_mistakes(benchmark)]
    agents_known = not found
    tasks = find_tasks(benchmark, config, found)
    specs = make_plan(benchmark, tasks, only) if any(tasks) and agents_known else ()
    found += _unmet_needs(config, benchmark, specs)
    if found:
        raise ConfigError(*found)
    return Plan(config, benchmark, specs, chosen, only)


def plan_tasks(config: Path, only: str | None) -> tuple[Benchmark, list[Task]]:
    """The tasks that a benchmark file names, each once, whatever agent and model would try them."""
    benchmark = load_benchmark(config)
    found: list[str] = []
    entries = find_tasks(benchmark, config, found)
    if found:
        raise ConfigError(*found)
    tasks = {task.digest: task for entry in entries for task in entry}
    kept = [task for task in tasks.values() if only is None or fnmatch.fnmatchcase(task.task_id, only)]
    if not kept:
        raise ConfigError(
            f"--only: nothing matches {only!r}; the tasks are {', '.join(t.task_id for t in tasks.values())}"
        )
    return benchmark, kept


def plan_task(folder: Path) -> tuple[Benchmark, list[Task]]:
    """One task folder, as if a benchmark with all defaults named it."""
    task = load_task(folder)
    entry = {"prepared_dir": str(folder), "agent": "nop"}
    return Benchmark.model_validate({"name": task.task_id, "tasks": [entry]}), [task]


def _unmet_needs(config: Path, benchmark: Benchmark, specs: Sequence[RunSpec]) -> list[str]:
    """A missing solution or recording is told before anything starts."""
    agents = {name: open_agent(name, benchmark) for name in {spec.agent for spec in specs}}
    found: dict[str, None] = {}
    for spec in specs:
        try:
            agents[spec.agent].check(spec)
        except ConfigError as exc:
            found.update({f"{config}: tasks[{spec.entry}]: {line}": None for line in exc.mistakes})
    return list(found)


def _with_recording_found(entry: TaskEntry, config: Path) -> TaskEntry:
    """`replay` is a path like all others in the file: from here, else from beside the file."""
    if entry.replay is None:
        return entry
    pattern = re.sub(r"\{(task_id|rollout)\}", "*", entry.replay)
    beside = config.parent / entry.replay
    here = glob.glob(pattern) or not glob.glob(str(config.parent / pattern))  # noqa: PTH207 - may be absolute
    return entry if here else entry.model_copy(update={"replay": str(beside)})


def missing_variables(plan: Plan) -> list[str]:
    """Variables that the plan's agents need and the environment lacks, a line each."""
    agents = sorted({spec.agent for spec in plan.specs})
    return [
        f"{plan.config}: agents.{name}.env: the environment variable {variable} is not set"
        for name in agents
        for variable in open_agent(name, plan.benchmark).env_names
        if variable not in os.environ
    ]


def dry_run(plan: Plan, root: DataRoot) -> Mapping[str, Any]:
    """What `run` would do, as plain data. Asks the engine which images are there, when one answers."""
    budget = plan.benchmark.budget
    per_run = budget.max_cost_usd_per_run
    bound = None if per_run is None else per_run * len(plan.specs)
    if budget.max_cost_usd is not None:
        bound = budget.max_cost_usd if bound is None else min(bound, budget.max_cost_usd)
    return {
        "schema": 1,
        "config": shown_path(plan.config),
        "name": plan.benchmark.name,
        "backend": plan.backend,
        "parallel": plan.parallel,
        "runs": [
            {"index": s.index, "task_id": s.task.task_id, "task_dir": shown_path(s.task.folder), "model": s.model}
            | {"agent": s.agent, "rollout": s.rollout, "timeout_s": s.timeout_s, "key": s.key}
            for s in plan.specs
        ],
        "images_to_build": _images_to_build(plan, root),
        "max_cost_usd": bound,
        "missing_environment_variables": missing_variables(plan),
    }


def _images_to_build(plan: Plan, root: DataRoot) -> list[str] | None:
    """Tasks whose image is not there yet; None when no engine answers."""
    backend = open_backend(plan.backend, plan.benchmark.docker, root.cache)
    preparation = Preparation(plan.benchmark, backend, root.cache)
    wanted: dict[str, None] = {}
    try:
        for spec in plan.first_of_each_image():
            image = preparation.planned_image(spec)
            if image is None or not backend.is_prepared(image):
                wanted[spec.task.task_id] = None
    except BackendUnavailable:
        return None
    finally:
        backend.close()
    return list(wanted)
