"""Any shell command as an agent: `agent = "command"`, or a table `[agents.NAME]` of the user's own."""

import re
import shlex

from rollouts.agents.base import Agent, AgentCommand, shell
from rollouts.backends.base import BoxPaths
from rollouts.config import AgentTable
from rollouts.plan import RunSpec

_PLACEHOLDER = re.compile(r"\{(model|instructions|workdir)\}")


class Command(Agent):
    """Runs a command line in the repository. `{model}`, `{instructions}` and `{workdir}` stand for this run's."""

    def __init__(self, table: AgentTable | None = None) -> None:
        self._command = table.command if table else None
        self.install = table.install if table else None
        self.env_names = table.env if table else ()

    def command(self, spec: RunSpec, paths: BoxPaths) -> AgentCommand:
        """The command line with its names filled in, each as one word of the shell."""
        line = self._command or spec.command or ""
        values = {"model": spec.model, "instructions": paths.instructions, "workdir": paths.cwd}
        return shell(_PLACEHOLDER.sub(lambda found: shlex.quote(values[found[1]]), line))
