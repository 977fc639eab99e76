"""Benchmark files made to hurt: refused with exit 2, in about a second, in little memory, with nothing made on disk."""

import shutil
import time
from pathlib import Path

import pytest

from tests.command_line import Project

HEAD = 'agent = "nop"\nbackend = "local"\n'
ONE = '[[tasks]]\nprepared_dir = "tasks/greet"\n'
LIMIT_S = 20.0
"""The promise is about a second on an idle machine."""
ADDRESS_SPACE_BYTES = 900_000_000


def _many(line: str, count: int) -> str:
    return "".join(line.replace("#", f"{number:x}") for number in range(count))


NESTED = "nested more than 16 deep"
BOMBS = {
    "nested arrays": (HEAD + "x = " + "[" * 10_000 + "]" * 10_000 + "\n" + ONE, NESTED),
    "nested arrays that never close": (HEAD + "x = " + "[" * 400_000, NESTED),
    "nested tables": (HEAD + "x = " + "{a=" * 10_000 + "1" + "}" * 10_000 + "\n" + ONE, NESTED),
    "a key of dots": (HEAD + "a" + ".a" * 400_000 + " = 1\n" + ONE, NESTED),
    "many keys of dots": (HEAD + _many("k#" + ".a" * 990 + " = 1\n", 480) + ONE, NESTED),
    "keys of dots in tables": (HEAD + ONE + _many("k# = {" + "a." * 990 + "a = 1}\n", 480), NESTED),
    "many keys below a header of dots": (HEAD + ONE + "[" + "a." * 900 + "a]\n" + _many("k#=1\n", 110_000), NESTED),
    "many keys": (HEAD + _many("k#=1\n", 120_000) + ONE, "more mistakes"),
    "a decimal number": (HEAD + "parallel = " + "9" * 900_000 + "\n" + ONE, "not valid TOML"),
    "a hexadecimal number": (HEAD + "parallel = 0x" + "f" * 900_000 + "\n" + ONE, "parallel: expected an integer"),
    "a long text": (HEAD + 'name = "' + "x" * 900_000 + '"\n' + ONE, "name: expected a name"),
    "a plan of too many rollouts": (HEAD + (ONE + "rollouts = 99999\n") * 2, "more than 100,000 runs planned"),
    "a plan of too many models": (HEAD + ONE + "models = [" + _many("'#',", 100_001) + "]\n", "more than 100,000 runs"),
    "entries that name nothing": (HEAD + '[[tasks]]\nprepared_dir = "no/x"\n' * 30_000, "more mistakes"),
}


def refused(project: Project, config: Path) -> str:
    """What `run` says; it must end soon, in bounded memory, and leave nothing."""
    bounded = ("prlimit", f"--as={ADDRESS_SPACE_BYTES}") if shutil.which("prlimit") else ()
    began = time.monotonic()
    ran = project("run", config, prefix=bounded)
    assert time.monotonic() - began < LIMIT_S
    assert ran.code == 2, ran.err[-2000:]
    assert "Traceback" not in ran.err
    assert len(ran.err) < 20_000
    assert not (project.folder / "data").exists()
    return ran.err


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    project.task()
    return project


@pytest.mark.parametrize("bomb", BOMBS)
def test_toml_bomb_is_refused_at_once(bomb: str, project: Project) -> None:
    text, said = BOMBS[bomb]
    assert len(text) < 1024 * 1024, "the limit on size would catch it"
    assert said in refused(project, project.config(text))


def test_toml_bomb_of_100_megabytes_is_not_even_read(project: Project) -> None:
    config = project.config("")
    with (project.folder / config).open("wb") as file:
        file.truncate(100 * 1024**2)
    assert "may have at most 1,048,576 bytes, this has 104,857,600" in refused(project, config)


def test_toml_bomb_checks_leave_ordinary_dots_alone(project: Project) -> None:
    sentence = "echo '" + "." * 1500 + " = a.b.c' && true"
    config = project.config(f'{HEAD}command = """{sentence}"""\n{ONE}model = "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r.s"\n')
    assert project("validate", config).code == 0
