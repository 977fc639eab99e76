"""What is wrong with something a user wrote, in one line each: file, key, what was expected, what stands there.

Shared by everything that reads users' files. Turns pydantic's errors into prose by the `description` of each field.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from rollouts.errors import ConfigError
from rollouts.terminal import without_credentials

MAX_FILE_BYTES = 1024 * 1024
MAX_MISTAKES = 100
"""More are not read by anyone."""


def read_text(path: Path, what: str, limit: int = MAX_FILE_BYTES) -> str:
    """The text of a small file that a user named; `ConfigError` in one line when it cannot be had."""
    try:
        if not path.is_file():
            raise FileNotFoundError
        if path.stat().st_size > limit:
            raise ConfigError(f"{path}: {what} may have at most {limit:,} bytes, this has {path.stat().st_size:,}")
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        problem = "is not a file" if path.exists() else f"no such file{did_you_mean_path(path)}"
        raise ConfigError(f"{path}: {problem}") from None
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: not UTF-8 at byte {exc.start}") from None
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from None


def did_you_mean_path(path: Path) -> str:
    """`; did you mean X?` for a file or folder that is not there."""
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return ""
    return did_you_mean(path.name, names, lambda name: str(path.parent / name))


def did_you_mean(word: str, known: Sequence[str], spell: Callable[[str], str] = str) -> str:
    """`; did you mean X?` or nothing."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {spell(close[0])}?" if close else ""


def deeper_than(value: object, depth: int) -> bool:
    """Whether tables and lists nest deeper than `depth`; does not recurse itself."""
    level: list[object] = [value]
    for _ in range(depth):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return False
    return True


def _children(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


Location = tuple[int | str, ...]


def mistakes(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """Each mistake as `key: expected …, got …`; of a great many the first, and how many more there are."""
    lines: dict[str, str] = {}
    found = error.errors(include_url=False)
    for number, item in enumerate(found):
        if len(lines) == MAX_MISTAKES:
            return [*lines.values(), f"and {len(found) - number:,} more mistakes"]
        if item["type"] == "too_short" and item["input"]:
            continue  # a list whose items are all wrong counts as empty for pydantic; the items are reported
        loc = item["loc"]
        expected, siblings = _expectation(loc, model)
        most = f"{item['ctx']['le']:.0f}" if item["type"] == "less_than_equal" else ""
        if most not in expected:
            expected += f" and at most {most}"
        if item["type"] == "extra_forbidden":
            close = did_you_mean(str(loc[-1]), siblings, lambda name, loc=loc: _spell((*loc[:-1], name)))  # type: ignore[misc]
            problem = f"unknown key{close}"
        elif item["type"] == "missing":
            problem = f"missing; expected {expected}"
        elif item["type"] == "value_error" and str(item["ctx"]["error"]):
            problem = str(item["ctx"]["error"])
        else:
            problem = f"expected {expected}, got {show(item['input'])}"
            if item["type"] == "literal_error":
                problem += did_you_mean(str(item["input"]), re.findall("'([^']+)'", item["ctx"]["expected"]))
        lines.setdefault(_spell(loc), f"{_spell(loc)}: {problem}")
    return list(lines.values())


def _expectation(loc: Location, model: type[BaseModel]) -> tuple[str, list[str]]:
    """Follow `loc` through the models: what is expected there, and which keys may stand beside it."""
    expected, siblings = "a table", list(model.model_fields)
    current, annotation = model, None
    for part in loc:
        if isinstance(part, int):
            expected = _inside(next(iter(get_args(annotation)), None))[1] or expected
            continue
        siblings = list(current.model_fields)
        field = current.model_fields.get(part)
        if field is None:
            continue
        annotation = field.annotation
        found, description = _inside(annotation, [*field.metadata, field])
        expected = description or ("a table" if found else expected)
        current = found or current
    return expected, siblings


def _inside(annotation: Any, metadata: Sequence[Any] = ()) -> tuple[type[BaseModel] | None, str | None]:
    """The model and the description somewhere within a field's type."""
    metadata = metadata or getattr(annotation, "__metadata__", ())
    description = next((text for item in metadata if (text := getattr(item, "description", None))), None)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, description
    for argument in get_args(annotation):
        model, inner = _inside(argument)
        description = description or inner
        if model is not None:
            return model, description
    return None, description


def _spell(loc: Location) -> str:
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def show(value: object, limit: int = 60) -> str:
    """A bad value as the user wrote it, shortened."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):  # a number of thousands of digits, which even `repr` refuses
        text = f"something that cannot be shown ({type(value).__name__})"
    text = without_credentials(text)
    return text if len(text) <= limit else f"{text[:limit]}…"
