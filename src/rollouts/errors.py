"""Every exception of the program and the exit code it ends with.

Two kinds of trouble exist. A *mistake of the user or the machine* stops the program: it is raised as a `RolloutsError`,
and `cli.main` is the one place that catches it, prints its one line and exits with its code. A *run that went wrong* is
data: `execute.execute_run` turns it into a `RunResult` that says in which stage it happened, so that a fault of ours is
never booked on a model. `SandboxFailed` and its kin are of the second kind; they may be tried again.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process says to its caller; the same numbers in every command."""

    OK = 0
    NONE_SUCCEEDED = 1
    USAGE = 2
    SOME_FAILED = 3
    BACKEND_UNAVAILABLE = 4
    GATE_FAILED = 5
    INTERRUPTED = 130
    TERMINATED = 143


class RolloutsError(Exception):
    """A mistake that stops the program: one line per mistake for the user, and an exit code."""

    exit_code = ExitCode.USAGE


class ConfigError(RolloutsError):
    """One or more mistakes in a benchmark file, a task folder or on the command line; `str()` has one per line."""

    SHOWN = 100
    """More are not read by anyone."""

    def __init__(self, *mistakes: str) -> None:
        more = [f"and {len(mistakes) - self.SHOWN:,} more mistakes"] if len(mistakes) > self.SHOWN + 1 else []
        super().__init__("\n".join([*mistakes[: self.SHOWN], *more] if more else mistakes))
        self.mistakes = mistakes


class NotFoundError(ConfigError):
    """A benchmark, batch or run that the user named does not exist."""


class StoreError(RolloutsError):
    """The data directory cannot be read or written as needed (disk full, no permission, batch in use)."""

    exit_code = ExitCode.NONE_SUCCEEDED


class BackendUnavailable(RolloutsError):
    """No sandbox can be made at all: no engine, no access, a missing base image, an image that does not build."""

    exit_code = ExitCode.BACKEND_UNAVAILABLE


class Interrupted(RolloutsError):
    """Stopped by a signal, with nothing to show for it."""

    def __init__(self, exit_code: ExitCode, message: str = "stopped before anything was run") -> None:
        super().__init__(message)
        self.exit_code = exit_code


class SandboxFailed(Exception):
    """One box could not do its job for a reason that is not the job's own doing. Worth another try."""


class ImageFailed(SandboxFailed):
    """An image could not be built or found. Building it again at once would fail again, so runs do not retry it."""


class JobCancelled(Exception):
    """The batch is being stopped and this job was ended with it."""
