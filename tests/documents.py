"""Reads README, CONTRIBUTING and docs/ as the tests need them: code blocks, tables, headings, links.

Only the Markdown that these files use is understood; a fence that is not closed fails loudly.
"""

import re
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{path.name}" for path in sorted((CHECKOUT / "docs").glob("*.md"))),
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language and its text."""

    language: str
    text: str
    line: int
    """Where its fence stands in the file."""

    def is_followed_by(self, other: "Block") -> bool:
        """Whether nothing but blank lines may stand between the two."""
        return other.line - self.line - self.text.count("\n") <= 3


@dataclass(frozen=True)
class Section:
    """What stands under one heading, up to the next."""

    heading: str
    rows: tuple[tuple[str, ...], ...]
    """The cells of all its tables, header rows and rules left out."""


def text_of(document: str) -> str:
    """All of a document."""
    return (CHECKOUT / document).read_text()


def blocks(document: str) -> list[Block]:
    """The fenced blocks of a document, in order."""
    found: list[Block] = []
    inside: tuple[str, int, list[str]] | None = None
    for number, line in enumerate(text_of(document).splitlines(), 1):
        if inside is None and line.startswith("```"):
            inside = (line.removeprefix("```"), number, [])
        elif inside is not None and line == "```":
            language, start, lines = inside
            found.append(Block(language, "".join(f"{each}\n" for each in lines), start))
            inside = None
        elif inside is not None:
            inside[2].append(line)
    assert inside is None, f"{document}: a block has no end: {inside}"
    return found


def prose(document: str) -> str:
    """A document without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text_of(document), flags=re.DOTALL | re.MULTILINE)


def sections(document: str) -> list[Section]:
    """A document's headings, each with the tables under it."""
    found: list[Section] = []
    for part in re.split(r"^(?=#+ )", prose(document), flags=re.MULTILINE):
        heading, _, body = part.partition("\n")
        rows: list[tuple[str, ...]] = []
        for line in body.splitlines():
            if line.startswith("|---"):
                rows.pop()  # what stands above the rule is the table's head
            elif line.startswith("|"):
                rows.append(tuple(cell.strip() for cell in line.strip("|").split("|")))
        found.append(Section(heading.lstrip("# "), tuple(rows)))
    return found


def section(document: str, heading: str) -> Section:
    """The section under that heading."""
    return next(each for each in sections(document) if each.heading == heading)


def code_in(cell: str) -> list[str]:
    """The `code` in a table's cell."""
    return re.findall(r"`([^`]+)`", cell)


def anchors(document: str) -> set[str]:
    """What a link to a heading may be called, by the rule that code hosts use."""
    return {
        re.sub(r"[^\w\- ]", "", each.heading.lower()).strip().replace(" ", "-")
        for each in sections(document)
        if each.heading
    }


def links(document: str) -> list[str]:
    """The targets of all links."""
    return re.findall(r"\]\(([^)\s]+)\)", prose(document))
