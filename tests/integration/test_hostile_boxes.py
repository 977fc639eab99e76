"""What comes out of boxes that were told to hurt: links, pipes, huge files. The host never reads files of its own."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.boxes import Kind, Lab, local_trouble, make_image, memory_mb, open_kind
from tests.samples import write_files

KINDS = [Kind.ROOT, Kind.USER, Kind.PLAIN, pytest.param(Kind.DOCKER, marks=pytest.mark.docker)]
WITNESS = b"only the host may read this: 5a1b9c"


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.value)
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    kind: Kind = request.param
    if kind is not Kind.DOCKER and (trouble := local_trouble(kind)):
        pytest.skip(trouble)
    folder = tmp_path_factory.mktemp(f"hostile-{kind.value}")
    opened = Lab(kind, open_kind(kind, folder / "cache"), make_image(folder / "task"), folder)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def witness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of the host, whose path every box is told."""
    folder = tmp_path_factory.mktemp("host")
    write_files(folder, {"witness": WITNESS})
    (folder / "witness").chmod(0o600)
    return folder / "witness"


def out_of(lab: Lab, script: str) -> dict[str, bytes]:
    """Everything that came out of a box, files and log."""
    ran = lab.run(script)
    return {**ran.files, "log": ran.log}


def links_to(path: Path) -> str:
    """A repository, and the agent's own folder, full of ways to one file of the host."""
    return f"""
        cd "$ROLLOUTS_REPO"; w={path}
        ln -s $w link; ln -s $w diff.patch; ln -s {path.parent} folder; ln -sf $w README.md
        ln $w hard 2>/dev/null; mkfifo pipe; ln -s pipe to_pipe; ln -s / root; ln -s ../../../../../../..$w climbing
        rm -rf src; ln -s {path.parent} src
        rm -f "$ROLLOUTS_OUT"/*; ln -s $w "$ROLLOUTS_OUT/notes.md"; ln -s $w "$ROLLOUTS_OUT/diff.patch"
        ln -s $w "$ROLLOUTS_OUT/results.xml"; ln -s $w "$ROLLOUTS_OUT/skipped.txt"
        python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")' 2>/dev/null
        echo made >made.txt
    """


def test_hostile_archive_and_links_of_a_box_never_show_the_host_its_own_files(lab: Lab, witness: Path) -> None:
    hard = "rm -f hard" if lab.kind is Kind.PLAIN else ":"  # a plain process can read whatever its user can
    found = out_of(lab, f"{links_to(witness)}\n{hard}")
    assert not [name for name, content in found.items() if WITNESS in content]
    tree = lab.tree_after(found["diff.patch"])
    assert tree["made.txt"] == b"made\n"
    assert tree["README.md"] == os.fsencode(witness)
    assert tree["src"] == os.fsencode(witness.parent)
    assert not {"pipe", "socket"} & set(tree)
    assert "./pipe" in found["skipped.txt"].decode().split("\n")


def test_hostile_archive_of_a_box_whose_supervisor_was_killed_is_unpacked_as_such(lab: Lab, witness: Path) -> None:
    """Then the tree is taken out and the patch made on the host."""
    if lab.kind is not Kind.DOCKER:
        pytest.skip("local boxes are captured on the host anyway")
    kill = "kill -9 -1; kill -9 $PPID; kill -9 1; sleep 60"
    found = out_of(lab, f"{links_to(witness)}\n{kill}")
    assert not [name for name, content in found.items() if WITNESS in content]
    tree = lab.tree_after(found["diff.patch"])
    assert tree["made.txt"] == b"made\n"
    assert tree["README.md"] == os.fsencode(witness)


def test_hostile_archive_of_a_repository_that_became_a_link_is_an_empty_one(lab: Lab, witness: Path) -> None:
    script = f'cd /; rm -rf "$ROLLOUTS_REPO"; ln -s {witness.parent} "$ROLLOUTS_REPO"; echo done'
    if lab.kind in (Kind.ROOT, Kind.USER):
        pytest.skip("the folder is a mount there, and cannot be replaced")
    found = out_of(lab, script)
    assert not [name for name, content in found.items() if WITNESS in content]


def test_huge_or_binary_diff_comes_out_of_a_box_as_a_result(lab: Lab) -> None:
    before_mb = memory_mb()
    found = out_of(
        lab,
        """
        cd "$ROLLOUTS_REPO"
        truncate -s 1G sparse; truncate -s 1G data.bin; printf '\\211PNG\\r\\n\\032\\n\\0\\0' >picture.png
        i=0; mkdir many; while [ $i -lt 2000 ]; do echo $i >many/$i; i=$((i+1)); done
        echo mended >src/app.txt; :
        """,
    )
    assert memory_mb() - before_mb < 100
    tree = lab.tree_after(found["diff.patch"])
    assert len([name for name in tree if name.startswith("many/")]) == 2000
    assert tree["picture.png"] == b"\x89PNG\r\n\x1a\n\0\0"
    assert tree["src/app.txt"] == b"mended\n"
    assert tree["data.bin"] == bytes(range(256))
    assert "sparse" not in tree
    assert b"GIT binary patch" in found["diff.patch"]
    assert set(found["skipped.txt"].split()) == {b"./sparse", b"./data.bin"}
