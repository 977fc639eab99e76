"""Applies the task's own `solution.patch`: shows that a task can be solved and that the scoring sees it."""

from pathlib import Path

from rollouts.agents.base import Agent, AgentCommand, apply_patch
from rollouts.backends.base import BoxPaths
from rollouts.errors import ConfigError
from rollouts.plan import RunSpec


class Oracle(Agent):
    """Knows the answer."""

    def check(self, spec: RunSpec) -> None:
        """There must be an answer."""
        _solution(spec)

    def command(self, spec: RunSpec, paths: BoxPaths) -> AgentCommand:
        """Apply the reference patch."""
        return apply_patch(_solution(spec).read_bytes(), paths)


def _solution(spec: RunSpec) -> Path:
    if spec.task.solution is None:
        raise ConfigError(f"{spec.task.folder}: no solution.patch; the agent oracle applies it")
    return spec.task.solution
