"""Preparation: sources and recipes, each made once per content; nothing hidden is part of a recipe."""

import threading
from pathlib import Path
from typing import Any

import pytest

from rollouts import prepare as prepare_module
from rollouts.backends import open_backend
from rollouts.backends.base import BOX_REPO, Image
from rollouts.config import DockerSettings
from rollouts.errors import ImageFailed, JobCancelled, SandboxFailed
from rollouts.prepare import Preparation
from rollouts.tasks import HIDDEN_FROM_AGENTS, Task
from rollouts.workspace import Source, prepare_source
from tests.samples import make_benchmark, make_spec, make_task


@pytest.fixture
def preparation(tmp_path: Path) -> Preparation:
    backend = open_backend("local", DockerSettings(), tmp_path / "cache")
    return Preparation(make_benchmark(agents={"mine": {"command": "x", "install": "i"}}), backend, tmp_path / "cache")


def image(preparation: Preparation, folder: Path, **parts: Any) -> Image:
    return preparation.image(make_spec(make_task(folder / "t", **parts)))


def test_a_recipe_says_all_that_makes_a_box(preparation: Preparation, tmp_path: Path) -> None:
    meta = {
        "repo": {"subdir": "sub"},
        "environment": {"image": "debian", "user": "1000", "workdir": "/work"},
    }
    found = image(preparation, tmp_path, meta=meta, repo={"sub/x": "x"}, files={"overlay_files/o": "o"})
    assert (found.task_id, found.base, found.user, found.workdir) == ("t", "debian", "1000", "/work")
    assert (found.subdir, found.instructions) == ("sub", "Make it work.\n")
    assert found.overlay == tmp_path / "t/overlay_files"
    assert (found.tree / "sub/x").exists()
    assert (found.base_git / "HEAD").exists()


def test_a_small_task_has_the_default_place(preparation: Preparation, tmp_path: Path) -> None:
    found = image(preparation, tmp_path)
    assert (found.workdir, found.base, found.dockerfile, found.overlay) == (BOX_REPO, None, None, None)


@pytest.mark.parametrize("name", [*HIDDEN_FROM_AGENTS, "solution.patch"])
def test_what_is_hidden_does_not_reach_the_build(name: str, preparation: Preparation, tmp_path: Path) -> None:
    found = image(preparation, tmp_path / "1", files={"Dockerfile": "FROM x"})
    path = "tests/x" if name == "tests" else name
    content = {"tb_meta.json": '{"task_id": "t"}', "overrides.json": "{}"}.get(name, "hidden")
    again = image(preparation, tmp_path / "2", files={"Dockerfile": "FROM x", path: content})
    assert name in found.dockerfile_hidden
    assert again.dockerfile_digest == found.dockerfile_digest


def test_what_the_build_sees_changes_its_digest(preparation: Preparation, tmp_path: Path) -> None:
    variants = [{"Dockerfile": "FROM x"}, {"Dockerfile": "FROM y"}, {"Dockerfile": "FROM x", "data.txt": "d"}]
    digests = {image(preparation, tmp_path / str(n), files=files).dockerfile_digest for n, files in enumerate(variants)}
    assert len(digests) == 3


def test_a_dockerfile_that_is_no_text_still_has_a_digest(preparation: Preparation, tmp_path: Path) -> None:
    variants: list[bytes] = [b"FROM x\n#\xff", b"FROM x\n#\xfe"]
    digests = {
        image(preparation, tmp_path / str(n), files={"Dockerfile": data}).dockerfile_digest
        for n, data in enumerate(variants)
    }
    assert len(digests) == 2


def test_an_image_of_the_task_beats_its_dockerfile(preparation: Preparation, tmp_path: Path) -> None:
    found = image(preparation, tmp_path, files={"Dockerfile": "FROM x"}, meta={"environment": {"image": "debian"}})
    assert (found.base, found.dockerfile) == ("debian", None)


def test_runs_that_share_a_recipe_share_the_object(preparation: Preparation, tmp_path: Path) -> None:
    task = make_task(tmp_path / "t")
    first, second = make_spec(task), make_spec(task, index=1, rollout=1)
    assert preparation.image(first) is preparation.image(second)
    assert preparation.image(make_spec(task, agent="mine")).install == "i"


def test_a_source_is_made_once_however_many_ask(
    preparation: Preparation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def count(task: Task, cache: Path) -> Source:
        made.append(task.task_id)
        return prepare_source(task, cache)

    monkeypatch.setattr(prepare_module, "prepare_source", count)
    task = make_task(tmp_path / "t")
    threads = [threading.Thread(target=preparation.source, args=(task,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == ["t"]


def test_a_source_that_cannot_be_had_is_told_to_all(preparation: Preparation, tmp_path: Path) -> None:
    task = make_task(tmp_path / "t", meta={"repo": {"git_url": "/nowhere"}})
    for _ in range(2):
        with pytest.raises(SandboxFailed, match="cannot fetch /nowhere") as caught:
            preparation.source(task)
        assert type(caught.value) is SandboxFailed  # worth another try, unlike what follows


def test_a_source_that_can_never_be_had_is_not_tried_again(
    preparation: Preparation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def count(task: Task, cache: Path) -> Source:
        made.append(task.task_id)
        return prepare_source(task, cache)

    monkeypatch.setattr(prepare_module, "prepare_source", count)
    task = make_task(tmp_path / "t", meta={"repo": {"subdir": "nowhere"}}, repo={"a": "a"})
    for _ in range(2):
        with pytest.raises(ImageFailed, match=r"repo\.subdir: no such folder, got nowhere$"):
            preparation.source(task)
    assert made == ["t"]


def test_a_source_that_is_being_made_is_not_waited_for_once_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = open_backend("local", DockerSettings(), tmp_path / "cache")
    preparation = Preparation(make_benchmark(), backend, tmp_path / "cache")
    let_go, ended = threading.Event(), threading.Event()

    def slow(task: Task, cache: Path) -> Source:
        backend.cancel()
        let_go.wait(60)
        ended.set()
        raise SandboxFailed("too late")

    monkeypatch.setattr(prepare_module, "prepare_source", slow)
    with pytest.raises(JobCancelled):
        preparation.source(make_task(tmp_path / "t"))
    assert not ended.is_set()
    let_go.set()
    assert ended.wait(10)


def test_a_planned_recipe_makes_nothing_and_is_the_real_one(preparation: Preparation, tmp_path: Path) -> None:
    spec = make_spec(make_task(tmp_path / "t"))
    planned = preparation.planned_image(spec)
    assert not (tmp_path / "cache").exists()
    assert planned == preparation.image(spec)


def test_a_recipe_whose_source_must_be_fetched_is_not_known_before(preparation: Preparation, tmp_path: Path) -> None:
    task = make_task(tmp_path / "t", meta={"repo": {"git_url": "/nowhere", "start_commit_sha": "abcdef1"}})
    assert preparation.planned_image(make_spec(task)) is None
