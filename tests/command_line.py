"""Starts the command as a user would: a process of its own, in a project folder of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
SCRIPT = CHECKOUT / "scripts" / "eval_rollouts.py"
SAMPLES = CHECKOUT / "data" / "tasks" / "prepared"


@dataclass(frozen=True)
class Ran:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The document on stdout."""
        return json.loads(self.out)


@dataclass(frozen=True)
class Project:
    """A folder with tasks and configs, like a user's."""

    folder: Path

    def __call__(
        self,
        *arguments: str | Path,
        env: Mapping[str, str] | None = None,
        limit_s: float = 120,
        prefix: Sequence[str] = (),
    ) -> Ran:
        """Run `rollouts` with these arguments here, started by `prefix`."""
        environ = {
            name: value for name, value in os.environ.items() if not name.startswith(("ROLLOUTS_DATA", "SANDBOX_"))
        }
        done = subprocess.run(
            [*prefix, sys.executable, str(SCRIPT), *map(str, arguments)],
            cwd=self.folder,
            env={**environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def task(self, name: str = "greet", **parts: str) -> Path:
        """A task folder; further files by path (`Dockerfile="…"`, or with `**{"repo/x": "…"}`)."""
        meta = {"task_id": name, "metadata": {"title": name}, "lm": {"instructions": "Greet the world.\n"}}
        files = {"tb_meta.json": json.dumps(meta), "repo/hello.txt": "hello\n", "repo/tool.sh": "echo tool\n", **parts}
        for path, text in files.items():
            target = self.folder / "tasks" / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        return self.folder / "tasks" / name

    def config(self, text: str, name: str = "bench.toml") -> Path:
        """A benchmark file; returns its path as a user would type it."""
        (self.folder / name).write_text(text)
        return Path(name)

    def manifest(self, name: str = "bench") -> dict[str, Any]:
        """The newest batch's manifest."""
        newest = max((self.folder / "data/rollouts" / name).iterdir())
        loaded: dict[str, Any] = json.loads((newest / "manifest.json").read_text())
        return loaded

    def patch(self, result: Mapping[str, Any]) -> bytes:
        """What a run did."""
        path: Path = self.folder / result["run_dir"] / "artifacts" / "diff.patch"
        return path.read_bytes()
