"""Names become paths: whatever is typed or written, nothing outside the folder that is meant is made or read."""

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rollouts.config import is_name, load_benchmark, safe_relative
from rollouts.errors import ConfigError, ImageFailed, NotFoundError
from rollouts.store import BatchState, DataRoot, batches, describe_batches, find_batch
from rollouts.task_folder import Meta, Overrides, load_task
from rollouts.workspace import _inside
from tests.samples import make_result, make_task, read_tree, write_files, write_task

STAMP = "20260101__00-00-00"
RULE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}\Z")
PARTS = ("..", ".", "", "/", "a", "bench", "outside", "temp", ".git", ".GIT", "link", "-x", "~", "\0", "\n", "é",
         "\u202e", "\\", "C:", " ", "*", STAMP, "%2e%2e", "\udcff")  # fmt: skip
texts = st.one_of(
    st.text(max_size=80),
    st.lists(st.sampled_from(PARTS), max_size=6).map("".join),
    st.lists(st.sampled_from(PARTS), max_size=6).map("/".join),
)
quickly = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def root(tmp_path: Path) -> DataRoot:
    """A data folder with one batch, and another's beside it that nobody may find."""
    journal = "\n".join(
        json.dumps(event)
        for event in (
            {"event": "batch", "at": "x", "name": "bench", "created_at": STAMP, "backend": "local", "config": "c"},
            {"event": "planned", "run": make_result().to_json()},
        )
    )
    for place in ("data/rollouts/bench", "outside", "outside/bench", "data/outside", "bench"):
        write_files(
            tmp_path / place / STAMP, {"manifest.json": "{}", "events.jsonl": f"{journal}\n", "config.toml": ""}
        )
    return DataRoot(tmp_path / "data")


@quickly
@given(texts)
def test_names_are_of_one_form_and_stay_where_they_are_put(text: str) -> None:
    assert is_name(text) is bool(RULE.match(text))
    if is_name(text):
        assert os.path.dirname(os.path.normpath(f"/data/{text}")) == "/data"  # noqa: PTH120 - as texts, without a disk


@quickly
@given(name=texts, rollout=st.none() | texts)
def test_names_and_stamps_of_the_command_line_find_nothing_outside(
    root: DataRoot, name: str, rollout: str | None
) -> None:
    before = read_tree(root.path.parent)
    try:
        place = find_batch(root, name, rollout)
    except NotFoundError:
        assert (name, rollout) not in (("bench", None), ("bench", STAMP))
    else:
        assert (place.name, place.stamp) == ("bench", STAMP)
        assert place.folder == root.rollouts / "bench" / STAMP
    assert read_tree(root.path.parent) == before


@quickly
@given(texts)
def test_names_given_to_list_find_nothing_outside(root: DataRoot, name: str) -> None:
    try:
        rows = describe_batches(root, name)
    except NotFoundError:
        assert name != "bench"
    else:
        assert [row["name"] for row in rows] == ["bench"]


def test_names_of_folders_that_are_none_are_no_batches(root: DataRoot) -> None:
    for name in ("-x", ".hidden", "a b", "\u202e", "temp"):
        write_files(root.rollouts / name / STAMP, {"manifest.json": "{}"})
    write_files(root.rollouts / "bench" / f"{STAMP}-x", {"manifest.json": "{}"})
    assert [(place.name, place.stamp) for place in batches(root)] == [("bench", STAMP)]


@quickly
@given(texts)
def test_names_of_benchmarks_and_agents_are_checked_where_they_are_read(tmp_path: Path, text: str) -> None:
    spelt = json.dumps(text, ensure_ascii=True).replace("\x7f", "\\u007f")
    if "\\ud" in spelt:
        return  # TOML has no half characters
    file = tmp_path / "x.toml"
    file.write_text(
        f'name = {spelt}\nagent = {spelt}\n[agents.{spelt}]\ncommand = "x"\n[[tasks]]\nprepared_dir = "t"\n'
    )
    try:
        benchmark = load_benchmark(file)
    except ConfigError:
        assert not is_name(text) or text == "temp"
    else:
        assert is_name(text)
        assert benchmark.name == text != "temp"


@quickly
@given(texts)
def test_names_of_tasks_and_rubrics_are_checked_where_they_are_read(text: str) -> None:
    for data in ({"task_id": text}, {"task_id": "t", "evaluation": {"rubrics": [{"id": text}]}}):
        try:
            Meta.model_validate(data)
        except ValidationError:
            assert not is_name(text)
        else:
            assert is_name(text)


@quickly
@given(texts)
def test_names_of_runs_in_a_journal_are_checked_before_they_are_paths(text: str) -> None:
    try:
        BatchState().apply({"event": "planned", "run": make_result(run_id=text).to_json()})
    except ValueError:
        assert not is_name(text)
    else:
        assert is_name(text)


@quickly
@given(texts)
def test_names_of_files_in_a_repository_stay_below_it(text: str) -> None:
    path = safe_relative(text)
    if path is None:
        return
    assert os.path.normpath(f"/repo/{text}").startswith("/repo/")
    assert "\0" not in text
    assert ".git" not in [part.lower() for part in path.parts]


@quickly
@given(texts)
def test_names_in_metas_and_overrides_that_leave_the_repository_are_refused(text: str) -> None:
    documents: list[tuple[type[Meta | Overrides], dict[str, object]]] = [
        (Overrides, {"inject_files": [{"path": text, "content": ""}]}),
        (Overrides, {"remove_repo_paths": [text]}),
        (Overrides, {"repo": {"subdir": text}}),
        (Overrides, {"evaluation": {"protected_paths": [text]}}),
        (Meta, {"task_id": "t", "environment": {"dockerfile": text}}),
        (Meta, {"task_id": "t", "repo": {"subdir": text}}),
        (Meta, {"task_id": "t", "evaluation": {"test_scripts": [{"path": text, "rubric_id": "r", "content": ""}]}}),
    ]
    for model, data in documents:
        try:
            model.model_validate(data)
        except ValidationError:
            assert safe_relative(text) is None
        else:
            assert safe_relative(text) is not None


@quickly
@given(texts)
def test_names_of_injected_files_write_nothing_outside_nor_through_links(tmp_path: Path, text: str) -> None:
    task_folder, tree = tmp_path / "t", tmp_path / "tree"
    if not tree.exists():
        make_task(task_folder)
        write_files(tree, {"a/file": "x"})
        write_files(tmp_path / "outside", {"victim": "as it was"})
        (tree / "link").symlink_to(tmp_path / "outside")
    outside = read_tree(tmp_path / "outside")
    try:
        target = _inside(tree, text, load_task(task_folder))
        target.write_text("planted")
        assert target.resolve().is_relative_to(tree.resolve())
    except (ImageFailed, OSError, ValueError):
        pass
    assert read_tree(tmp_path / "outside") == outside
    if (tree / "link").is_file():
        (tree / "link").unlink()  # a file may take the place of a link
    if not (tree / "link").is_symlink():
        (tree / "link").symlink_to(tmp_path / "outside")


@pytest.mark.parametrize("part", ["tests", "overlay_files", "solution.patch", "LM_INSTRUCTIONS.md", "evaluate.sh"])
def test_names_in_a_task_that_are_links_out_of_it_are_refused(part: str, tmp_path: Path) -> None:
    write_files(tmp_path / "outside", {"x": "secret of the host"})
    folder = write_task(tmp_path / "task", instructions=None if part == "LM_INSTRUCTIONS.md" else "x")
    (folder / part).symlink_to(tmp_path / "outside" / ("" if part in ("tests", "overlay_files") else "x"))
    with pytest.raises(ConfigError, match="is a link that leaves the task folder"):
        load_task(folder)
