"""`scripts/eval_rollouts.py --help` against a bare typer app with as many commands and options."""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import typer

from measure import ROOT, Cost, Row, alternate, cpu_ratio, scratch_folder, timed, wall_ratio
from rollouts.cli import app

RATIO_BOUND = 1.3


def measure(quick: bool) -> list[Row]:
    """Wall clock and CPU, whole processes."""
    with scratch_folder() as folder:
        bare = folder / "bare.py"
        bare.write_text(bare_app())
        sides = (partial(run_help, ROOT / "scripts/eval_rollouts.py"), partial(run_help, bare))
        pairs = alternate(*sides, 5 if quick else 20)
    return [
        wall_ratio("--help / bare typer app", pairs, 1, RATIO_BOUND),
        cpu_ratio("--help / bare typer app, CPU", pairs, 1, RATIO_BOUND),
    ]


def run_help(script: Path) -> Cost:
    """One process, from start to end."""
    command = [sys.executable, str(script), "--help"]
    return timed(partial(subprocess.run, command, check=True, capture_output=True))


def bare_app() -> str:
    """The text of an app that does nothing, with our commands and as many parameters for each."""
    group: Any = typer.main.get_command(app)
    lines = ["import typer", "", "app = typer.Typer(add_completion=False, no_args_is_help=True)", ""]
    for number, command in enumerate(group.commands.values()):
        options = [f'a{n}: str = typer.Option("", help="An option.")' for n, _ in enumerate(command.params)]
        lines += [f'@app.command("command-{number}")', f"def command_{number}({', '.join(options)}) -> None:"]
        lines += ['    """A command that does nothing at all, described in one line."""', ""]
    return "\n".join([*lines, "app()", ""])
