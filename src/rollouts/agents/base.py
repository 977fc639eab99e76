"""What an agent is: data and pure functions. An adapter never sees a sandbox, so it needs none to be tested."""

import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from rollouts.backends.base import BoxPaths
from rollouts.plan import RunSpec


@dataclass(frozen=True)
class AgentCommand:
    """What is run in the box, and the files that only this run needs there."""

    argv: tuple[str, ...]
    files: Mapping[str, bytes]
    env: Mapping[str, str]


class Agent(ABC):
    """The program that tries to solve a task."""

    install: str | None = None
    """A shell command that installs it into an image; run once per base image, not per run."""
    env_names: tuple[str, ...] = ()
    """Variables of the user's environment that it needs; values are never kept."""

    def check(self, spec: RunSpec) -> None:
        """Raise ConfigError when the spec lacks what this agent needs; asked before anything starts."""

    @abstractmethod
    def command(self, spec: RunSpec, paths: BoxPaths) -> AgentCommand:
        """What to run for that spec."""


def shell(script: str, **files: bytes) -> AgentCommand:
    """A shell script in the repository, with files beside it by name (`solution_patch` → `solution.patch`)."""
    named = {name.replace("_", "."): content for name, content in files.items()}
    return AgentCommand(("sh", "-c", script), named, {})


def apply_patch(patch: bytes, paths: BoxPaths) -> AgentCommand:
    """Apply a recorded patch, in images without git too. An empty patch is fine: nothing was done."""
    file = shlex.quote(f"{paths.inputs}/recorded.patch")
    script = (
        f"cd {shlex.quote(paths.repo)} && [ -s {file} ] || exit 0\n"
        f"if command -v git >/dev/null; then git apply --binary --whitespace=nowarn {file}; else patch -p1 <{file}; fi"
    )
    return shell(script, recorded_patch=patch)
