"""Hostile texts on every way to a terminal: they are shown, never obeyed."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import SCRIPT, Project, Ran

NASTY = "\x1b]0;owned\x07\x1b[31m\x9b2J\x7f\u202e\u2066\r\x08[bold red]x[/bold red]\u2028"
SHOWN = r"\x1b]0;owned\x07\x1b[31m\x9b2J\x7f\u202e\u2066\r\x08[bold red]x[/bold red]\u2028"
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
SAY = 'import os, sys; nasty = os.environ["NASTY"]'


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    meta = {"task_id": "greet", "metadata": {"title": NASTY, "tags": [NASTY]}, "lm": {"instructions": NASTY}}
    rubrics = [{"id": "good", "criterion": NASTY}]
    scripts = [{"path": "check.sh", "rubric_id": "good", "content": "cat -- *x*; ls; exit 1\n"}]
    project.task(
        "greet", **{"tb_meta.json": json.dumps({**meta, "evaluation": {"rubrics": rubrics, "test_scripts": scripts}})}
    )
    (project.folder / "tasks/greet/repo/agent.py").write_text(
        "import sys\n"
        f"nasty = {NASTY!r}\n"
        "print(nasty, flush=True); print(nasty, file=sys.stderr, flush=True)\n"
        "sys.stdout.buffer.write(b'\\xff\\xfe invalid \\x9b2J\\n' + b'x' * 30000 + nasty.encode() + b'\\n')\n"
        "open(nasty.replace('/', '_'), 'w').write(nasty)\n"
        "sys.exit(int(sys.argv[1]))\n"
    )
    return project


def config(project: Project, name: str = "bench.toml", code: int = 3) -> Path:
    return project.config(
        f'name = "bench"\nagent = "command"\nbackend = "local"\ncommand = "python3 agent.py {code}"\n'
        '[[tasks]]\nprepared_dir = "tasks/greet"\nmodel = "[bold]m[/bold]"\n',
        name,
    )


def assert_harmless(*ran: Ran) -> None:
    for one in ran:
        assert "Traceback" not in one.err, one.err
        assert not CONTROLS.findall(one.out + one.err)


def test_terminal_shows_what_a_box_prints_and_obeys_nothing_of_it(project: Project) -> None:
    file = config(project)
    runs = [project("run", file, "--eval", *options) for options in ((), ("-v",), ("-vv",), ("--json",))]
    assert_harmless(*runs)
    assert SHOWN in runs[2].err
    assert "\ufffd\ufffd invalid" in runs[2].err
    assert runs[2].err.count("x" * 8000) >= 3, "an endless line is let out in pieces"
    assert all("[bold]m[/bold]" in ran.out for ran in runs[:2])
    evals = [project("eval", "bench", "--force", *options) for options in ((), ("-v",), ("-vv",), ("--json",))]
    tables = [project(*words) for words in (("summarize", "bench"), ("list",), ("validate", file), ("doctor",))]
    assert_harmless(*evals, *tables)
    assert SHOWN in evals[2].err


def test_terminal_shows_hostile_names_of_files(project: Project) -> None:
    file = config(project, f"{NASTY.replace('/', '_')}.toml", code=0)
    odd = project.folder / f"odd{NASTY}".replace("/", "_")
    odd.mkdir()
    said = [
        project("run", file, "-v"),
        project("validate", file),
        project("run", f"missing{NASTY}.toml"),
        project("validate", odd),
        project("list", "--data-dir", odd),
        project("list", "--json", "--data-dir", odd),
        project("summarize", NASTY),
        project("eval", "bench", "--rollout", NASTY),
        project("eval", "bench", "--only", NASTY),
        project("resume", "bench", "--rollout", NASTY),
        project("doctor", env={"DOCKER_HOST": f"unix:///nowhere{NASTY}"}),
        project("run", file, "--backend", NASTY),
    ]
    assert said[0].code == 0
    assert_harmless(*said)


def edited(project: Project) -> Iterator[dict[str, object]]:
    """The journal with hostile texts wherever texts are."""
    (journal,) = (project.folder / "data/rollouts/bench").glob("*/events.jsonl")
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    yield from events
    journal.write_text("".join(json.dumps(event) + "\n" for event in events))
    (journal.parent / "eval_manifest.json").unlink(missing_ok=True)


def test_terminal_shows_a_journal_that_was_edited_by_hand(project: Project) -> None:
    assert project("run", config(project)).code == 1
    for event in edited(project):
        if event["event"] == "batch":
            event.update({"backend": NASTY, "config": NASTY, "created_at": NASTY, "name": NASTY})
        elif "run" in event:
            run = event["run"]
            assert isinstance(run, dict)
            run.update({"model": NASTY, "task_id": NASTY, "agent": NASTY, "task_dir": NASTY, "run_dir": NASTY})
            if run["error"]:
                run["error"] = {"stage": NASTY, "type": NASTY, "message": f"{NASTY}\n✓ All 1 tasks completed!"}
        elif event["event"] == "finished":
            event["at"] = NASTY
    said = [
        project(*words)
        for words in (
            ("list",),
            ("list", "--json"),
            ("summarize", "bench"),
            ("summarize", "bench", "--json"),
            ("eval", "bench", "-vv"),
            ("resume", "bench", "--retry-failed", "--dry-run"),
        )
    ]
    assert_harmless(*said)
    assert SHOWN in said[2].out
    assert json.loads(said[3].out)["rows"][0]["model"] == NASTY


def test_terminal_shows_a_journal_of_hostile_texts_while_scoring(project: Project) -> None:
    project("run", config(project))
    for event in edited(project):
        if "run" in event:
            run = event["run"]
            assert isinstance(run, dict)
            run.update({"model": f"m{NASTY}\n✓ forged", "agent": NASTY})
    for options in ((), ("-v",), ("-vv",)):
        ran = project("eval", "bench", "--force", *options)
        assert_harmless(ran)
        assert not [line for line in (ran.out + ran.err).splitlines() if line.startswith("✓ forged")]


def on_a_terminal(project: Project, *arguments: str | Path) -> bytes:
    """What a command writes on a terminal of its own."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "160", "LINES": "40"}
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    with subprocess.Popen(
        command, cwd=project.folder, env=environ, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            said += part
        process.wait(60)
    os.close(ours)
    return said


def test_terminal_with_a_live_board_obeys_nothing_out_of_a_box(project: Project) -> None:
    file = config(project)
    for options in ((), ("-v",), ("-vv",)):
        said = on_a_terminal(project, "run", file, *options)
        assert b"completed" in said
        for part in (b"\x1b]0;", b"\x07", "\x9b".encode(), b"\x7f", "\u202e".encode(), "\u2066".encode(), b"\x08"):
            assert part not in said, (options, part)
        assert b"\xff" not in said


@pytest.mark.docker
def test_terminal_shows_what_a_build_prints(project: Project) -> None:
    nasty = "printf '\\033]0;owned\\007\\033[31m\\302\\2332J\\177\\342\\200\\256[bold]x[/bold]'"
    project.task("greet", Dockerfile=f"ARG BASE_IMAGE\nFROM ${{BASE_IMAGE}}\nRUN {nasty}; exit 9\n")
    file = config(project)
    for options in ((), ("-vv",)):
        ran = project("run", file, "--backend", "docker", *options)
        assert ran.code == 4
        assert "[bold]x[/bold]" in ran.err
        assert_harmless(ran)
