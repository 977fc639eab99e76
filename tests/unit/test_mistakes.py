"""Mistakes in users' files, told in one line each."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rollouts.errors import ConfigError
from rollouts.mistakes import deeper_than, did_you_mean, did_you_mean_path, mistakes, read_text, show


def test_a_close_word_is_suggested() -> None:
    assert did_you_mean("modle", ["model", "models", "agent"]) == "; did you mean model?"
    assert did_you_mean("modle", ["model"], lambda name: f"tasks[0].{name}") == "; did you mean tasks[0].model?"


def test_a_far_word_is_not_suggested() -> None:
    assert did_you_mean("zebra", ["model", "agent"]) == ""
    assert did_you_mean("zebra", []) == ""


def test_a_close_file_is_suggested_with_its_folder(tmp_path: Path) -> None:
    (tmp_path / "task_1").mkdir()
    assert did_you_mean_path(tmp_path / "task1") == f"; did you mean {tmp_path}/task_1?"
    assert did_you_mean_path(tmp_path / "nowhere/x") == ""


@pytest.mark.parametrize(("value", "depth"), [(1, 0), ([], 1), ({"a": 1}, 1), ({"a": [1]}, 2), ([[[]]], 3)])
def test_depth_counts_tables_and_lists(value: object, depth: int) -> None:
    assert not deeper_than(value, depth + 1)
    if depth:
        assert deeper_than(value, depth - 1)


def test_a_value_is_shown_as_it_was_written_and_shortened() -> None:
    assert show("é") == '"é"'
    assert show(True) == "true"
    assert show(None) == "null"
    assert show([1, {"a": 2}]) == '[1, {"a": 2}]'
    assert show("x" * 100) == '"' + "x" * 59 + "…"
    assert show(Path("a")) == '"a"'


def test_text_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes("é\r\n".encode())
    assert read_text(tmp_path / "x", "a file") == "é\r\n"


def test_a_file_above_its_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("12345")
    assert read_text(tmp_path / "x", "a file", limit=5) == "12345"
    with pytest.raises(ConfigError, match="a file may have at most 4 bytes, this has 5"):
        read_text(tmp_path / "x", "a file", limit=4)


def test_a_path_that_cannot_be_looked_at_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_text(tmp_path / ("x" * 300), "a file")
    assert "\n" not in str(caught.value)


class Chosen(BaseModel):
    model_config = ConfigDict(strict=True)

    backend: Annotated[Literal["docker", "modal", "local"], Field(description="one of docker, modal, local")]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("dokcer", '"dokcer"; did you mean docker?'),
        ("Local", '"Local"; did you mean local?'),
        ("podman", '"podman"'),
        ("", '""'),
        (5, "5"),
        (["docker"], '["docker"]; did you mean docker?'),
        (None, "null"),
    ],
)
def test_a_word_that_is_close_to_one_of_a_few_is_suggested(value: object, said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Chosen.model_validate({"backend": value})
    assert mistakes(caught.value, Chosen) == [f"backend: expected one of docker, modal, local, got {said}"]


def test_a_byte_order_mark_is_not_part_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbfa\xef\xbb\xbf")
    assert read_text(tmp_path / "x", "a file") == "a\ufeff"
