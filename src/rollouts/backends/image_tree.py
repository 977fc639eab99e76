"""Which images of an engine can go, and how much that frees. Pure: works on what the engine lists.

An image is ours when its label names one of its own tags: what someone else built on top of ours inherits the label,
but not the tag.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollouts.backends.base import BuiltImage

IMAGE_LABEL = "rollouts.image"
"""On every image that was built to its end: its tag."""
BUILDING_LABEL = "rollouts.building"
"""The same from a build's first step on, so that what a build leaves that was given up can be told."""
UNFINISHED_S = 3600.0
"""How old a step must be to belong to no build any more."""


@dataclass
class _Node:
    """One image of the engine."""

    identity: str
    parent: str
    tags: set[str]
    labels: Mapping[str, str]
    size: int
    created: float
    children: set[str] = field(default_factory=set)

    @property
    def own_tag(self) -> str | None:
        """The name that we gave it, if it is ours."""
        tag = self.labels.get(IMAGE_LABEL)
        return tag if tag in self.tags else None

    def is_unfinished(self, now: float) -> bool:
        """Whether it is what a build of ours left that was given up."""
        building = self.labels.get(BUILDING_LABEL)
        left = building is not None and building != self.labels.get(IMAGE_LABEL) and not self.tags
        return left and self.created < now - UNFINISHED_S


def removable(
    listed: Sequence[Mapping[str, Any]], used_ids: Iterable[str], used_tags: Iterable[str], now: float
) -> list[BuiltImage]:
    """Images of ours that neither a container nor a process nor another's image needs; children before parents."""
    nodes = _nodes(listed)
    wanted = {*used_tags}
    busy = [node.identity for node in nodes.values() if {*node.tags, node.labels.get(BUILDING_LABEL)} & wanted]
    used = _with_ancestors(nodes, [*used_ids, *busy])
    found = []
    while chosen := next((node for node in nodes.values() if node.identity not in used and _may_go(node, now)), None):
        tag = chosen.own_tag
        found.append(BuiltImage(tag or chosen.identity, _take(nodes, chosen), unfinished=tag is None))
    return found


def _nodes(listed: Sequence[Mapping[str, Any]]) -> dict[str, _Node]:
    nodes = {}
    for entry in listed:
        tags = {tag for tag in entry.get("RepoTags") or () if tag != "<none>:<none>"}
        labels, parent = entry.get("Labels") or {}, entry.get("ParentId") or ""
        nodes[entry["Id"]] = _Node(entry["Id"], parent, tags, labels, int(entry["Size"]), float(entry["Created"]))
    for node in nodes.values():
        if node.parent in nodes:
            nodes[node.parent].children.add(node.identity)
    return nodes


def _with_ancestors(nodes: Mapping[str, _Node], identities: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for identity in identities:
        while identity in nodes and identity not in found:
            found.add(identity)
            identity = nodes[identity].parent
    return found


def _may_go(node: _Node, now: float) -> bool:
    return not node.children and (node.own_tag is not None or node.is_unfinished(now))


def _take(nodes: dict[str, _Node], node: _Node) -> int:
    """Take an image out of the tree as the engine does, with the nameless steps that led only to it."""
    freed = 0
    if node.tags - {node.own_tag}:  # someone gave it another name: that one stays
        node.tags.discard(str(node.own_tag))
        return freed
    while True:
        del nodes[node.identity]
        parent = nodes.get(node.parent)
        freed += node.size - (parent.size if parent else 0)
        if parent is None:
            return freed
        parent.children.discard(node.identity)
        if parent.children or parent.tags:
            return freed
        node = parent
