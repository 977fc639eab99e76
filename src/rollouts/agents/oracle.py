"""Applies the task's own `solution.patch`: shows that a task can be solved and that the scoring sees it."""

from rollouts.agents.base import Agent, AgentCommand, apply_patch
from rollouts.backends.base import BoxPaths
from rollouts.errors import ConfigError
from rollouts.plan import RunSpec


class Oracle(Agent):
    """Knows the answer."""

    def command(self, spec: RunSpec, paths: BoxPaths) -> AgentCommand:
        """Apply the reference patch."""
        if spec.task.solution is None:
            raise ConfigError(f"{spec.task.folder}: no solution.patch; the agent oracle applies it")
        return apply_patch(spec.task.solution.read_bytes(), paths)
