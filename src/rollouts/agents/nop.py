"""Does nothing: what a task scores for an empty patch, and what the machinery costs."""

from rollouts.agents.base import Agent, AgentCommand
from rollouts.backends.base import BoxPaths
from rollouts.plan import RunSpec


class Nop(Agent):
    """Gives up at once, with success."""

    def command(self, spec: RunSpec, paths: BoxPaths) -> AgentCommand:
        """Nothing."""
        return AgentCommand(("true",), {}, {})
