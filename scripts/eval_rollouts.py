#!/usr/bin/env python3
"""The `rollouts` command, from a checkout. Any Python will do: it hands over to the checkout's .venv when it must."""

import contextlib
import os
import sys
from pathlib import Path

HANDED_OVER = "ROLLOUTS_HANDED_OVER"  # set for the second interpreter, so that it never hands over again
VENV_PYTHON = Path(__file__).resolve().parent.parent / ".venv" / "bin" / "python"

handed_over = os.environ.pop(HANDED_OVER, None) is not None
try:
    from rollouts.cli import main
except ModuleNotFoundError as exc:
    if not handed_over and os.access(VENV_PYTHON, os.X_OK):
        with contextlib.suppress(OSError):  # a broken .venv is told like a missing one
            os.execve(VENV_PYTHON, [str(VENV_PYTHON), *sys.argv], {**os.environ, HANDED_OVER: "1"})
    print(f"rollouts: {exc}; run `make setup` in the checkout first", file=sys.stderr)
    sys.exit(2)

if __name__ == "__main__":
    main()
