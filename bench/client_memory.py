"""Our own peak memory with 200 runs in flight at once in local sandboxes; the sandboxes' memory is not counted.

Each run waits on a pipe in its repository until all have begun, so that they truly are in flight together.
"""

import io
import os
import subprocess
import sys
import threading
from pathlib import Path

from measure import SAMPLE_TASK, Row, scratch_folder
from rollouts.batch import run_batch
from rollouts.console import RunConsole
from rollouts.errors import ExitCode
from rollouts.planning import plan_batch
from rollouts.store import DataRoot

RUNS = 200
LIMIT_S = 600
WAIT = "mkfifo gate && echo waiting && read -r line <gate; rm gate"


def measure(quick: bool) -> list[Row]:
    """Peak memory with many runs, and what each adds to a process with one."""
    runs = RUNS // 4 if quick else RUNS
    one, many = peak_mb(1), peak_mb(runs)
    return [
        Row(f"memory, {runs} runs in flight", many, "MB", f"{one:.0f} MB with 1"),
        Row("memory, each further run", (many - one) / (runs - 1), "MB", f"{many:.0f} MB - {one:.0f} MB"),
    ]


def peak_mb(runs: int) -> float:
    """In a process of its own, whose temporary folder holds nobody else's sandboxes."""
    with scratch_folder() as folder:
        done = subprocess.run(
            [sys.executable, __file__, str(folder), str(runs)],
            env={**os.environ, "TMPDIR": str(folder)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    if done.returncode:
        raise SystemExit(f"client_memory: {done.stderr.strip()[-1000:]}")
    return float(done.stdout)


class Gate(RunConsole):
    """Lets every run go on once the last one has begun."""

    def __init__(self, folder: Path, runs: int) -> None:
        super().__init__(0, io.StringIO(), io.StringIO())
        self._folder, self._missing = folder, runs

    def output(self, run_id: str, data: bytes) -> None:
        """A run says that it waits."""
        with self._lock:
            self._missing -= data.count(b"waiting\n")
            if not self._missing:
                threading.Thread(target=self._open).start()

    def _open(self) -> None:
        for pipe in self._folder.glob("rollouts-*/*/app/repo/gate"):
            pipe.write_text("go\n")


def run_all(folder: Path, runs: int) -> None:
    """One batch with all its runs in flight together; prints this process's peak."""
    config = folder / "wait.toml"
    task = f'[[tasks]]\nprepared_dir = "{SAMPLE_TASK}"\nrollouts = {runs}\n'
    config.write_text(f'agent = "command"\ncommand = "{WAIT}"\n{task}')
    plan = plan_batch(config, backend="local", parallel=runs, only=None)
    outcome = run_batch(plan, DataRoot(folder / "data"), Gate(folder, runs))
    if outcome.exit_code is not ExitCode.OK:
        raise SystemExit(f"a run failed: {next(result.error for result in outcome.results if result.error)}")
    print(_peak_kb() / 1024)


def _peak_kb() -> int:
    """Of this program alone: `getrusage` would count what our parent was before it started us."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    run_all(Path(sys.argv[1]), int(sys.argv[2]))
