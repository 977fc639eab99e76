"""A task folder on disk → `Task`. Overrides are applied to what was read; the folder itself is never changed."""

import contextlib
import glob
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from rollouts.config import NAME_EXPECTED, Benchmark, Environment, Text, find_path, is_name
from rollouts.digests import digest_of, digest_parts
from rollouts.errors import ConfigError
from rollouts.mistakes import deeper_than, did_you_mean, did_you_mean_path, mistakes, read_text
from rollouts.tasks import (
    RELATIVE_EXPECTED,
    EnvironmentSpec,
    Evaluation,
    InjectedFile,
    Lm,
    Metadata,
    Part,
    PathPattern,
    Repo,
    Task,
)

META_LIMIT_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 32
Parsed = TypeVar("Parsed", bound=Part)


def _checked_name(text: str) -> str:
    if not is_name(text):
        raise ValueError
    return text


class Meta(Part):
    """`tb_meta.json`."""

    task_id: Annotated[str, Field(description=NAME_EXPECTED), AfterValidator(_checked_name)]
    metadata: Metadata = Metadata()
    repo: Repo = Repo()
    lm: Lm = Lm()
    evaluation: Evaluation = Evaluation()
    environment: EnvironmentSpec = EnvironmentSpec()


class Overrides(Part):
    """`overrides.json`: what one entry of a benchmark changes about a task."""

    remove_repo_paths: Annotated[
        tuple[PathPattern, ...], Field(description="a list of paths, folders with a final /, or globs", strict=False)
    ] = ()
    inject_files: Annotated[tuple[InjectedFile, ...], Field(description="a list of {path, content}", strict=False)] = ()
    repo: Repo = Repo()
    lm_instructions: Text | None = None
    environment_variables: Environment = Field(default_factory=dict)
    evaluation: Evaluation = Evaluation()


def load_task(folder: Path, *, apply_overrides: bool = True, overrides: Path | None = None) -> Task:
    """Read a task folder; raise one `ConfigError` with every mistake in it."""
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else f"no such task folder{did_you_mean_path(folder)}"
        raise ConfigError(f"{folder}: {problem}")
    if not str(folder).isprintable():
        raise ConfigError(f"{str(folder)!a}: expected a folder whose name can be printed")
    try:
        return _load(folder, _overrides_path(folder, overrides) if apply_overrides else None)
    except OSError as exc:
        raise ConfigError(f"{exc.filename or folder}: cannot be read: {exc.strerror}") from None


def _load(folder: Path, used: Path | None) -> Task:
    found: list[str] = []
    meta_path = folder / "tb_meta.json"
    meta, over = _parse(meta_path, Meta, "a task's description", found), Overrides()
    if used is not None:
        over = _parse(used, Overrides, "overrides", found) or over
    if meta is None or found:
        raise ConfigError(*found)
    parts = digest_parts(folder)
    explicit = {f"({used})": digest_of(used.read_bytes().hex())} if used and used.parent != folder else {}
    task = Task(
        folder=folder,
        task_id=meta.task_id,
        title=meta.metadata.title or meta.task_id,
        tags=meta.metadata.tags,
        instructions=over.lm_instructions or _instructions(folder, meta),
        repo=_overridden(meta.repo, over.repo),
        evaluation=_overridden(meta.evaluation, over.evaluation),
        environment=meta.environment,
        remove_repo_paths=over.remove_repo_paths,
        inject_files=over.inject_files,
        environment_variables=over.environment_variables,
        overrides=used,
        digest=digest_of(parts, used.read_bytes().hex() if used else None),
        parts={**parts, **explicit},
    )
    found = _cross_checks(task, meta_path)
    if found:
        raise ConfigError(*found)
    return task


def find_tasks(benchmark: Benchmark, config: Path, found: list[str]) -> list[list[Task]]:
    """For each entry of the benchmark the tasks that it names. Mistakes in them are added to `found`, not raised."""
    loaded: dict[tuple[Path, bool, Path | None], Task] = {}
    entries: list[list[Task]] = []
    for index, entry in enumerate(benchmark.tasks):
        explicit = find_path(entry.overrides, config.parent) if entry.overrides and entry.apply_overrides else None
        tasks: list[Task] = []
        where = f"{config}: tasks[{index}]"
        with _noting(found, where):
            for folder in _task_folders(entry.prepared_dir, config.parent):
                key = (folder, entry.apply_overrides, explicit)
                with _noting(found, where):
                    if key not in loaded:
                        loaded[key] = load_task(folder, apply_overrides=entry.apply_overrides, overrides=explicit)
                    tasks.append(loaded[key])
        entries.append(tasks)
    found += _shared_ids({task.folder: task.task_id for tasks in entries for task in tasks}, config)
    return entries


def _shared_ids(ids: Mapping[Path, str], config: Path) -> list[str]:
    """Results are told apart by task_id, so two folders must not share one."""
    first: dict[str, Path] = {}
    found = []
    for folder, task_id in ids.items():
        other = first.setdefault(task_id, folder)
        if other.resolve() != folder.resolve():
            found.append(f"{config}: {folder}/tb_meta.json: task_id: {task_id} is also that of {other}")
    return found


@contextlib.contextmanager
def _noting(found: list[str], where: str) -> Iterator[None]:
    """One folder's mistakes must not hide those of the next."""
    try:
        yield
    except ConfigError as exc:
        found += [f"{where}: {line}" for line in exc.mistakes]


def _task_folders(text: str, beside: Path) -> list[Path]:
    """One folder, or all that a glob matches and that look like tasks."""
    if not glob.has_magic(text):
        return [find_path(text, beside)]
    for start in dict.fromkeys(("", str(beside))):
        names = glob.glob(text, root_dir=start or None, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
        matches = sorted(Path(start, name) for name in names)
        folders = [path for path in matches if (path / "tb_meta.json").exists()]
        if folders:
            return folders
    raise ConfigError(f"{text}: the glob matches no folder with a tb_meta.json")


def _overrides_path(folder: Path, explicit: Path | None) -> Path | None:
    if explicit is not None:
        return explicit
    own = folder / "overrides.json"
    return own if own.exists() else None


def _instructions(folder: Path, meta: Meta) -> str:
    path = folder / "LM_INSTRUCTIONS.md"
    text = read_text(path, "instructions") if path.exists() else meta.lm.instructions
    if not text or not text.strip():
        raise ConfigError(f"{folder}: no instructions; expected LM_INSTRUCTIONS.md, or lm.instructions in tb_meta.json")
    return text


def _parse(path: Path, model: type[Parsed], what: str, found: list[str]) -> Parsed | None:
    """The file's content; None when it has mistakes, which are added to `found`."""
    try:
        data = _json(path, what)
    except ConfigError as exc:
        found += exc.mistakes
        return None
    wrong, parsed = _misspelt(data, model), None
    try:
        parsed = model.model_validate(data)
    except ValidationError as exc:
        wrong += mistakes(exc, model)
    found += [f"{path}: {line}" for line in wrong]
    return parsed


def _json(path: Path, what: str) -> dict[str, Any]:
    try:
        data = json.loads(read_text(path, what, META_LIMIT_BYTES))
        json.dumps(data, ensure_ascii=False).encode()
    except json.JSONDecodeError as exc:
        raise ConfigError(f"{path}: not valid JSON: {exc.msg} (at line {exc.lineno}, column {exc.colno})") from None
    except UnicodeEncodeError:
        raise ConfigError(f"{path}: holds half a character (a lone surrogate), which is no text") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested more than {MAX_DEPTH} deep") from None
    except ValueError as exc:  # a number of thousands of digits
        raise ConfigError(f"{path}: not valid JSON: {exc}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a JSON object")
    if deeper_than(data, MAX_DEPTH):
        raise ConfigError(f"{path}: nested more than {MAX_DEPTH} deep")
    return data


def _overridden(under: Parsed, over: Parsed) -> Parsed:
    """`under` with the keys that `over` names in place of its own."""
    return under.model_copy(update={name: getattr(over, name) for name in over.model_fields_set})


def _misspelt(data: Mapping[str, Any], model: type[BaseModel], prefix: str = "") -> list[str]:
    """Unknown keys that look like known ones. Other unknown keys belong to other programs and are let through."""
    known = list(model.model_fields)
    found = []
    for key, value in data.items():
        close = did_you_mean(key, known, lambda name: prefix + name) if key not in known else ""
        if close:
            found.append(f"{prefix}{key}: unknown key{close}")
        inner = model.model_fields[key].annotation if key in known else None
        if isinstance(inner, type) and issubclass(inner, BaseModel) and isinstance(value, dict):
            found += _misspelt(value, inner, f"{prefix}{key}.")
    return found


def _cross_checks(task: Task, meta_path: Path) -> list[str]:
    found = []
    if not (task.folder / "repo").is_dir() and task.repo.git_url is None:
        found.append(f"{meta_path}: repo.git_url: missing; expected it, or a folder repo/ beside tb_meta.json")
    if task.environment.dockerfile and not (task.folder / task.environment.dockerfile).is_file():
        found.append(f"{meta_path}: environment.dockerfile: no such file, got {task.environment.dockerfile}")
    ids = [rubric.id for rubric in task.evaluation.rubrics]
    found += [
        f"{meta_path}: evaluation.rubrics: id {name} stands twice" for name in {i for i in ids if ids.count(i) > 1}
    ]
    for index, script in enumerate(task.evaluation.test_scripts):
        if ids and script.rubric_id not in ids:
            close = did_you_mean(script.rubric_id, ids)
            key = f"evaluation.test_scripts[{index}].rubric_id"
            found.append(f"{meta_path}: {key}: no such rubric, got {script.rubric_id}{close}")
    found += [
        f"{path}: is a link that leaves the task folder; expected {RELATIVE_EXPECTED}"
        for path in _escaping_links(task.folder)
    ]
    return found


def _escaping_links(folder: Path) -> list[Path]:
    """Links among the task's own parts that lead out of it. Links within repo/ are the source's own business."""
    inside = os.path.realpath(folder)  # unlike `resolve`, it takes a link to itself
    links = [entry for entry in sorted(folder.iterdir()) if entry.is_symlink()]
    return [link for link in links if not Path(os.path.realpath(link)).is_relative_to(inside)]
