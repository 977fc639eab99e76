"""Applies a recorded patch: a file, or what an earlier run did. Repeats a batch without calling any model."""

from pathlib import Path

from rollouts.agents.base import Agent, AgentCommand, apply_patch
from rollouts.backends.base import BoxPaths
from rollouts.errors import ConfigError
from rollouts.plan import RunSpec


class Replay(Agent):
    """Does again what was done before."""

    def check(self, spec: RunSpec) -> None:
        """There must be a recording."""
        _recording(spec)

    def command(self, spec: RunSpec, paths: BoxPaths) -> AgentCommand:
        """Apply the recording."""
        return apply_patch(_recording(spec).read_bytes(), paths)


def _recording(spec: RunSpec) -> Path:
    """`{task_id}` and `{rollout}` in the path stand for this run's."""
    name = (spec.replay or "").replace("{task_id}", spec.task.task_id).replace("{rollout}", str(spec.rollout))
    path = Path(name)
    patch = path / "artifacts" / "diff.patch" if path.is_dir() else path
    if not patch.is_file():
        raise ConfigError(f"{name}: no such recording; expected a patch file, or the folder of a run, for replay")
    return patch
