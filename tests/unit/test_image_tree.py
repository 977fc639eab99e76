"""Which images may go: ours, that nothing uses, children first."""

from typing import Any

from rollouts.backends.base import BuiltImage
from rollouts.backends.image_tree import BUILDING_LABEL, IMAGE_LABEL, removable

NOW = 1_000_000.0


def image(name: str, parent: str = "", size: int = 0, *, created: float = 0.0, **more: Any) -> dict[str, Any]:
    """As an engine lists it; one whose name has a colon is tagged and labelled as ours."""
    ours = name.startswith("rollouts/")
    labels = {IMAGE_LABEL: name, BUILDING_LABEL: name} if ours else None
    tags = [name] if ":" in name else None
    return {
        "Id": name,
        "ParentId": parent,
        "Size": size,
        "Created": created,
        "RepoTags": tags,
        "Labels": labels,
        **more,
    }


BASE = image("debian:12", size=100)
AGENT = image("rollouts/agent:1", "debian:12", 130)
STEP = image("step", "rollouts/agent:1", 135)
TASK = image("rollouts/task:1", "step", 140)
SIBLING = image("rollouts/task:2", "rollouts/agent:1", 131)
ALL = [BASE, AGENT, STEP, TASK, SIBLING]


def names(found: list[BuiltImage]) -> list[str]:
    return [each.name for each in found]


def test_children_go_first_and_each_frees_what_only_it_held() -> None:
    found = removable(ALL, [], [], NOW)
    assert found == [
        BuiltImage("rollouts/task:1", 10),  # with the step that led to it
        BuiltImage("rollouts/task:2", 1),
        BuiltImage("rollouts/agent:1", 30),
    ]


def test_what_a_container_uses_stays_with_all_that_it_is_made_from() -> None:
    assert names(removable(ALL, ["rollouts/task:1"], [], NOW)) == ["rollouts/task:2"]


def test_what_a_process_works_with_stays() -> None:
    assert names(removable(ALL, [], ["rollouts/task:2"], NOW)) == ["rollouts/task:1"]
    assert removable(ALL, [], ["rollouts/task:1", "rollouts/task:2", "rollouts/agent:1"], NOW) == []


def test_what_others_built_on_ours_is_theirs_and_keeps_ours() -> None:
    """It inherits our label, with the name of the image that it was built on."""
    theirs = image("mine:latest", "rollouts/task:1", 150, Labels=TASK["Labels"])
    nameless = image("theirs", "rollouts/task:1", 150, Labels=TASK["Labels"])
    for other in (theirs, nameless):
        assert names(removable([*ALL, other], [], [], NOW)) == ["rollouts/task:2"]


def test_another_name_that_someone_gave_it_stays() -> None:
    both = {**TASK, "RepoTags": ["rollouts/task:1", "keep:this"]}
    assert removable([BASE, AGENT, STEP, both], [], [], NOW) == [BuiltImage("rollouts/task:1", 0)]


def test_steps_of_builds_that_were_given_up_go_when_they_are_old() -> None:
    labels = {IMAGE_LABEL: "rollouts/agent:1", BUILDING_LABEL: "rollouts/task:9"}
    first = image("first", "debian:12", 101, Labels=labels)
    last = image("last", "first", 105, Labels=labels)
    young = image("young", "debian:12", 105, Labels=labels, created=NOW - 60)
    assert removable([BASE, first, last, young], [], [], NOW) == [BuiltImage("last", 5, unfinished=True)]
    assert removable([BASE, first, last], [], ["rollouts/task:9"], NOW) == [], "it is being built again"


def test_an_engine_that_tells_no_parents_and_no_labels_is_understood() -> None:
    plain = {"Id": "x", "Size": 5, "Created": 1, "RepoTags": ["<none>:<none>"], "Labels": None}
    alone = {**plain, "Id": "y", "Size": 7, "RepoTags": ["rollouts/task:1"], "Labels": {IMAGE_LABEL: "rollouts/task:1"}}
    assert removable([plain, alone], [], [], NOW) == [BuiltImage("rollouts/task:1", 7)]
