"""Every command in README, CONTRIBUTING and docs/ works: each is run as it stands, in order, in a copy of the project.

Each ```bash block is one fresh shell in the project's folder, so what one exports does not reach the next. A command
must exit with 0, or with N where a comment behind it says `# exit N`. A ```toml block that begins with
`# some/path.toml` is saved there, as a reader would do. A block that begins with `# needs a Docker engine` is run by a
test of its own. A ```text block right after a bash block, with nothing between, is that one's output, times and
stamps aside; a line `…` stands for more.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.documents import CHECKOUT, DOCUMENTS, Block, blocks

NOT_RUN = {
    "make setup": "installs packages; the tests run in what it makes",
    ". .venv/bin/activate": "the copy has no .venv; PATH is set for the tests as this would do it",
    "make test": "would run this test again, and so on",
    "make soak": "takes ten minutes; its tests run in a short form anyway",
    "make lint types": "steps of their own in .ci/run; they judge the code, not the docs",
    "make lock": "needs uv and a package index",
    'eval "$(.ci/engine)"': "installs packages and starts an engine",
}
"""Commands of the docs that the tests do not run, by how they begin, each with its reason."""
DOCKER_MARK = "# needs a Docker engine\n"
BLOCK_LIMIT_S = 240
STATUS_FD = 9


@dataclass(frozen=True)
class Command:
    """A command of a block, perhaps over several lines, and the code it must exit with."""

    text: str
    code: int

    @property
    def is_run(self) -> bool:
        """Whether the tests may run it."""
        return not any(self.text == start or self.text.startswith(f"{start} ") for start in NOT_RUN)


def commands(block: Block) -> list[Command]:
    """Lines are put together until bash takes them for something whole: continuations, loops, here-documents."""
    found, pending = [], ""
    for line in block.text.splitlines():
        pending += f"{line}\n"
        checked = subprocess.run(["bash", "-n"], input=pending, capture_output=True, text=True)
        if checked.returncode or checked.stderr or pending.endswith("\\\n"):
            continue
        text, pending = pending.strip(), ""
        if text and not text.startswith("#"):
            first = text.partition("\n")[0]
            code = re.search(r"# exit (\d+)", first)
            found.append(
                Command(re.sub(r"\s+# .*", "", text, count=1) if "# " in first else text, int(code[1]) if code else 0)
            )
    assert not pending, f"not a whole command: {pending}"
    return found


def is_for_docker(block: Block) -> bool:
    """Whether a block can be run only where there is an engine."""
    return block.text.startswith(DOCKER_MARK)


def steps(document: str, *, docker: bool) -> Iterator[tuple[Block, Block | None]]:
    """The blocks to save or run, in order, each with the picture of its output when there is one."""
    all_blocks = blocks(document)
    for block, after in zip_longest(all_blocks, all_blocks[1:]):
        if block.language == "toml" or (block.language == "bash" and is_for_docker(block) == docker):
            is_picture = after is not None and after.language == "text" and block.is_followed_by(after)
            yield block, after if is_picture else None


@dataclass(frozen=True)
class Copy:
    """A fresh copy of the project, without anything that git ignores."""

    folder: Path

    def run(self, block: Block) -> tuple[str, str]:
        """Run a block's commands in one shell; returns what it printed on stdout and on stderr."""
        wanted = [command for command in commands(block) if command.is_run]
        script = "".join(f"{command.text}\necho $? >&{STATUS_FD}\n" for command in wanted)
        status, script_file = self.folder.parent / "status", self.folder.parent / "script"
        script_file.write_text(f"exec {STATUS_FD}>{status}\n{script}")
        done = subprocess.run(
            ["bash", str(script_file)],
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BLOCK_LIMIT_S,
        )
        codes = [int(line) for line in status.read_text().split()]
        said = f"line {block.line}:\n{done.stdout}\n{done.stderr}"
        assert codes == [command.code for command in wanted], f"{[each.text for each in wanted]}: {said}"
        return done.stdout, done.stderr

    def save(self, block: Block) -> None:
        """Put a file where its first line says."""
        named = re.match(r"# ([\w./-]+\.toml)\n", block.text)
        if named:
            (self.folder / named[1]).write_text(block.text)

    def _environment(self) -> dict[str, str]:
        """A user's in an activated environment: nothing of this test run's own reaches make or the program."""
        unwanted = ("MAKE", "MFLAGS", "SANDBOX_BACKEND", "ROLLOUTS_DATA", "PYTEST")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
        venv = Path(sys.executable).parent.parent
        stamp = self.folder.parent / "setup-stamp"
        stamp.write_text(str(self.folder))  # what make compares with its folder: nothing is installed again
        link = self.folder.parent / "venv"  # make takes a space in a path for its end
        if not link.is_symlink():
            link.symlink_to(venv)
        variables = f"VENV={link} STAMP={stamp}"
        return {**environ, "PATH": f"{venv}/bin:{environ['PATH']}", "MAKEFLAGS": variables}


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """All files that git knows or would know."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=CHECKOUT,
        capture_output=True,
        check=True,
    ).stdout
    for name in filter(None, os.fsdecode(listed).split("\0")):
        source, target = CHECKOUT / name, tmp_path / "project" / name
        if source.is_file():  # a file may be deleted and still be known
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return Copy(tmp_path / "project")


def run_document(document: str, copy: Copy, *, docker: bool) -> None:
    """Do everything that a document tells its reader to do."""
    for block, picture in steps(document, docker=docker):
        if block.language == "toml":
            copy.save(block)
            continue
        out, err = copy.run(block)
        if picture is not None:
            assert_shows(picture.text, out, err)


def assert_shows(picture: str, out: str, err: str) -> None:
    """All that is shown was printed; and all of stdout is shown, unless a line `…` stands for the rest."""
    shown, printed = plain_lines(picture), plain_lines(out)
    missing = [line for line in shown if line not in [*printed, *plain_lines(err), "…"]]
    assert not missing, f"not printed: {missing}\nprinted: {printed}"
    if "…" not in shown:
        assert sorted(shown) == sorted(printed)


def plain_lines(text: str) -> list[str]:
    """Lines without what differs from run to run and from machine to machine."""
    text = re.sub(r"\S+/venv/bin/", ".venv/bin/", text)
    text = re.sub(r"\d{8}__\d\d-\d\d-\d\d", "STAMP", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "INSTANT", text)
    text = re.sub(r"\b\d+\.\d s\b", "TIME", text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def documents(*, docker: bool) -> list[str]:
    """Those with something to run."""
    return [each for each in DOCUMENTS if any(block.language == "bash" for block, _ in steps(each, docker=docker))]


@pytest.mark.parametrize("document", documents(docker=False))
def test_every_command_works_as_written(document: str, copy: Copy) -> None:
    run_document(document, copy, docker=False)


@pytest.mark.docker
@pytest.mark.parametrize("document", documents(docker=True))
def test_every_command_that_needs_an_engine_works_as_written(document: str, copy: Copy) -> None:
    run_document(document, copy, docker=True)


def test_the_readme_has_a_picture_of_the_demo() -> None:
    pictured = [block for block, picture in steps("README.md", docker=False) if picture and "make demo" in block.text]
    assert len(pictured) == 1


def test_nothing_is_excused_that_no_document_says() -> None:
    every = [
        command
        for document in DOCUMENTS
        for block in blocks(document)
        if block.language == "bash"
        for command in commands(block)
    ]
    for start in NOT_RUN:
        assert any(command.text.startswith(start) for command in every), start


def test_saved_files_do_not_overwrite_files_of_the_project() -> None:
    for document in DOCUMENTS:
        for block in blocks(document):
            named = re.match(r"# ([\w./-]+\.toml)\n", block.text) if block.language == "toml" else None
            assert named is None or not (CHECKOUT / named[1]).exists(), block.line
