"""Benchmark + tasks → the runs to do, in order. Pure: no clock, no disk."""

import fnmatch
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rollouts.config import MAX_RUNS, Benchmark, Limits, Network, Profile, TaskEntry
from rollouts.digests import digest_of
from rollouts.errors import ConfigError
from rollouts.tasks import Task


@dataclass(frozen=True)
class RunSpec:
    """One agent's try at one task: everything that makes it what it is, and nothing of when or where it runs."""

    index: int
    entry: int
    """Which `[[tasks]]` of the file it comes from."""
    task: Task
    model: str
    agent: str
    command: str | None
    replay: str | None
    rollout: int
    """Which of the entry's rollouts, from 0."""
    timeout_s: float
    max_tokens: int | None
    env: Mapping[str, str]
    limits: Limits
    network: Network
    profile: Profile
    key: str
    """Names the content of all this, so that a finished run can be found again."""


def make_plan(benchmark: Benchmark, tasks: Sequence[Sequence[Task]], only: str | None = None) -> tuple[RunSpec, ...]:
    """Every run of the benchmark; `tasks` holds, for each entry, the tasks it names.

    `only` keeps the runs whose task or model matches a glob. Indexes count what is kept.
    """
    specs: list[RunSpec] = []
    seen: Counter[str] = Counter()
    chosen = [list(_kept(benchmark, entry, found, only)) for entry, found in zip(benchmark.tasks, tasks, strict=True)]
    if sum(entry.rollouts * len(kept) for entry, kept in zip(benchmark.tasks, chosen, strict=True)) > MAX_RUNS:
        raise ConfigError(f"{benchmark.name}: more than {MAX_RUNS:,} runs planned; split the benchmark")
    for number, kept in enumerate(chosen):
        for task, model in kept:
            specs += _specs(benchmark, number, task, model, len(specs), seen)
    if not specs:
        known = sorted({task.task_id for found in tasks for task in found})
        raise ConfigError(f"--only: nothing matches {only!r}; the tasks are {', '.join(known[:20])}")
    return tuple(specs)


def _kept(
    benchmark: Benchmark, entry: TaskEntry, tasks: Sequence[Task], only: str | None
) -> Iterator[tuple[Task, str]]:
    for task in tasks:
        for model in benchmark.models_of(entry):
            names = (task.task_id, task.folder.name, model)
            if only is None or any(fnmatch.fnmatchcase(name, only) for name in names):
                yield task, model


def _specs(benchmark: Benchmark, number: int, task: Task, model: str, start: int, seen: Counter[str]) -> list[RunSpec]:
    """`seen` counts runs of equal content, so that an entry that stands twice gets keys of its own."""
    entry = benchmark.tasks[number]
    agent = benchmark.agent_of(entry, model)
    env = {**task.environment_variables, **entry.environment_variables}
    timeout_s = float(env["TIMEOUT_SEC"]) if "TIMEOUT_SEC" in env else entry.timeout_s or benchmark.timeout_s
    max_tokens = int(float(env["TOKEN_LIMIT"])) if "TOKEN_LIMIT" in env else benchmark.budget.max_tokens_per_run
    command = entry.command or benchmark.command if agent == "command" else None
    own = benchmark.agents[agent].model_dump() if agent in benchmark.agents else None
    content = digest_of(
        task.digest, model, agent, own, command, entry.replay, env, timeout_s, max_tokens,
        benchmark.limits.model_dump(), benchmark.network.model_dump(), benchmark.profile,
    )  # fmt: skip
    earlier = seen[content]
    seen[content] += entry.rollouts
    return [
        RunSpec(
            index=start + rollout,
            entry=number,
            task=task,
            model=model,
            agent=agent,
            command=command,
            replay=entry.replay,
            rollout=rollout,
            timeout_s=timeout_s,
            max_tokens=max_tokens,
            env=env,
            limits=benchmark.limits,
            network=benchmark.network,
            profile=benchmark.profile,
            key=digest_of(content, earlier + rollout)[:32],
        )
        for rollout in range(entry.rollouts)
    ]
