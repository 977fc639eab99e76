"""`data/rollouts` and `data/runs`: where batches and runs live, and what is true about them.

`events.jsonl` is the truth. `manifest.json`, `runs.txt` and `task_results/` are derived from it by folding its events,
and written whole; so the same fold gives the same manifest after a crash as it gave while running.
"""

import contextlib
import json
import logging
import os
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock

from rollouts.config import is_name
from rollouts.errors import NotFoundError, StoreError
from rollouts.files import (
    JOURNAL_ADVICE,
    Journal,
    cannot_write,
    encode,
    make_folder,
    read_journal,
    remove_stale,
    sync_folder,
    write_json,
    write_whole,
)
from rollouts.locks import WorkLock, holder, is_held
from rollouts.mistakes import did_you_mean
from rollouts.owner import Owner
from rollouts.plan import RunSpec
from rollouts.results import RunResult, Status

log = logging.getLogger(__name__)

SCHEMA = 1
MANIFEST_EVERY_S = 1.0
TASKS = "tasks.json"
"""The digests of each task's parts when the batch was made: what changed since can be told."""
_STAMP = re.compile(r"\d{8}__\d\d-\d\d-\d\d")
_STAMP_FORMAT = "%Y%m%d__%H-%M-%S"


def now() -> str:
    """This instant, as files say it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def shown_path(path: Path) -> str:
    """As files say it: relative to the current directory when below it, else absolute."""
    absolute, here = os.path.abspath(path), os.getcwd()  # noqa: PTH109 - texts: this is asked for every planned run
    return absolute[len(here) :].lstrip("/") or "." if f"{absolute}/".startswith(f"{here}/") else absolute


@dataclass(frozen=True)
class DataRoot:
    """The `data/` folder."""

    path: Path

    @property
    def rollouts(self) -> Path:
        """Batches, by benchmark name."""
        return self.path / "rollouts"

    @property
    def runs(self) -> Path:
        """Runs, by run id."""
        return self.path / "runs"

    @property
    def cache(self) -> Path:
        """What can be made again."""
        return self.path / "cache"

    def make(self) -> None:
        """Say so before anything starts when nothing could be kept here."""
        try:
            make_folder(self.cache)
        except OSError as exc:
            advice = "name another place with --data-dir or $ROLLOUTS_DATA"
            raise StoreError(f"{self.path}: cannot be written: {exc.strerror}; {advice}") from exc


@dataclass
class BatchState:
    """What the events say so far."""

    header: dict[str, Any] = field(default_factory=dict)
    results: dict[str, RunResult] = field(default_factory=dict)
    resumed: list[dict[str, Any]] = field(default_factory=list)
    """When the batch was gone on with, and whether something had changed meanwhile."""
    finished_at: str | None = None

    def apply(self, event: Mapping[str, Any]) -> str | None:
        """Take one event in; returns the id of the run it changed."""
        match event["event"]:
            case "batch":
                self.header = {key: value for key, value in event.items() if key not in ("event", "at")}
            case "planned" | "ended":
                result = RunResult.from_json(event["run"])
                if not is_name(result.run_id):
                    raise ValueError  # it becomes a path
                if any(type(count) is not int for count in (result.changes or {}).values()):
                    raise TypeError
                self.results[result.run_id] = result
                return result.run_id
            case "started":
                known = self.results[event["run_id"]]
                begun = known.begun(event["attempt"], event["at"])
                self.results[known.run_id] = begun
                self.finished_at = None
                return known.run_id
            case "resumed":
                self.resumed.append({"at": event["at"], "changed": event["changed"]})
            case "finished":
                self.finished_at = event["at"]
        return None

    @staticmethod
    def load(folder: Path) -> "BatchState":
        """Fold a batch's journal."""
        state, number = BatchState(), 0
        try:
            for event in read_journal(folder / "events.jsonl"):
                number += 1
                state.apply(event)
        except (KeyError, TypeError, ValueError, AttributeError):
            problem = f"the journal is damaged: line {number} makes no sense{JOURNAL_ADVICE}"
            raise StoreError(f"{folder}/events.jsonl: {problem}") from None
        if not state.header:
            raise StoreError(f"{folder}/events.jsonl: does not begin with a batch: it was never fully made, or cut off")
        return state

    def manifest(self) -> dict[str, Any]:
        """All of `manifest.json`."""
        return {**self._head(), "results": [result.to_json() for result in self.results.values()]}

    def _head(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **self.header, "resumed": self.resumed, "finished_at": self.finished_at}


class Batch:
    """A batch that this process works on: the only writer of its folder."""

    def __init__(self, root: DataRoot, name: str, stamp: str, *, restoring: bool = False) -> None:
        """Raises StoreError when another process works on it. To be closed, whatever happens."""
        self.root, self.name, self.stamp = root, name, stamp
        self.folder = root.rollouts / name / stamp
        self.state = BatchState()
        self._work_lock = WorkLock(self.folder / ".lock", "works on this batch", restoring=restoring)
        self._lock = threading.Lock()
        self._texts: dict[str, str] = {}
        self._dirty = threading.Event()
        self._closing = threading.Event()
        self._failure: StoreError | None = None
        self._writer = threading.Thread(target=self._keep_manifest, name="manifest", daemon=True)
        try:
            self._journal = Journal(self.folder / "events.jsonl")
        except OSError as exc:
            self._work_lock.release()
            raise StoreError(f"{self.folder}/events.jsonl: cannot be written: {exc.strerror}") from exc

    @staticmethod
    def create(
        root: DataRoot, name: str, header: Mapping[str, Any], specs: Sequence[RunSpec], config_text: bytes
    ) -> "Batch":
        """Claim a stamp and put the plan on disk. From here on the batch can be found and resumed."""
        with creation_lock(root):
            stamp = _claim_stamp(root, name)
            batch = Batch(root, name, stamp)
        with batch._closing_on_trouble():
            batch._write_plan(header, specs, config_text)
        batch._writer.start()
        return batch

    def _write_plan(self, header: Mapping[str, Any], specs: Sequence[RunSpec], config_text: bytes) -> None:
        """The manifest comes last: a batch that has none never began."""
        planned = [self._planned(spec) for spec in specs]
        write_whole(self.folder / "config.toml", config_text)
        write_json(self.folder / TASKS, {shown_path(spec.task.folder): dict(spec.task.parts) for spec in specs})
        self._record(
            {"event": "batch", "at": now(), "name": self.name, "created_at": self.stamp, **header},
            self._opened(),
            *({"event": "planned", "run": result.to_json()} for result in planned),
        )
        (self.folder / "task_results").mkdir()
        _write_lists(self.root, self.folder, planned)
        sync_folder(self.folder.parent)
        self._write_manifest()

    @staticmethod
    def open(root: DataRoot, place: "BatchPlace", *, restoring: bool = False) -> "Batch":
        """Take a batch that is on disk, to go on with it or to leave it as it is."""
        batch = Batch(root, place.name, place.stamp, restoring=restoring)
        with batch._closing_on_trouble():
            batch.state = BatchState.load(batch.folder)
            _restore(root, batch.folder, batch.state)
        return batch

    @contextlib.contextmanager
    def _closing_on_trouble(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            self.close()
            raise cannot_write(Path(exc.filename or self.folder), exc) from exc
        except BaseException:
            self.close()
            raise

    def resume(self, replanned: Iterable[RunSpec], *, changed: bool) -> None:
        """Begin to work on it again. `replanned` are runs that are not what they were; `changed`: something is not."""
        runs = []
        for spec in replanned:
            known = self.state.results[f"{self.stamp}-{spec.index}"]
            runs.append(replace(self._planned(spec), attempt=known.attempt))
        self._record(
            self._opened(),
            {"event": "resumed", "at": now(), "changed": changed},
            *({"event": "planned", "run": result.to_json()} for result in runs),
        )
        self._writer.start()

    @staticmethod
    def _opened() -> dict[str, Any]:
        owner = Owner.current()
        return {"event": "opened", "at": now(), "host": owner.host, "pid": owner.pid}

    def _planned(self, spec: RunSpec) -> RunResult:
        run_id = f"{self.stamp}-{spec.index}"
        return RunResult(
            task_dir=shown_path(spec.task.folder),
            run_id=run_id,
            status=Status.PENDING,
            launch_rc=None,
            run_dir=shown_path(self.root.runs / run_id),
            task_id=spec.task.task_id,
            model=spec.model,
            agent=spec.agent,
            rollout=spec.rollout,
            key=spec.key,
            overrides=shown_path(spec.task.overrides) if spec.task.overrides else None,
        )

    def started(self, run_id: str) -> RunResult:
        """A run's next attempt begins."""
        attempt = self.state.results[run_id].attempt + 1
        self._record({"event": "started", "at": now(), "run_id": run_id, "attempt": attempt}, sync=False)
        if attempt > 1:
            _task_result(self.folder, run_id).unlink(missing_ok=True)
        return self.state.results[run_id]

    def ended(self, result: RunResult) -> None:
        """An attempt came to its end. On disk for sure when this returns."""
        self._record({"event": "ended", "at": now(), "run": result.to_json()})
        _write_task_result(self.folder, result)

    def close(self, *, finished: bool = False) -> None:
        """Bring everything derived up to date and give the batch back. Once: later calls do nothing."""
        if self._closing.is_set():
            return
        try:
            if finished:
                self._record({"event": "finished", "at": now()})
        finally:
            self._closing.set()
            self._dirty.set()
            if self._writer.is_alive():
                self._writer.join()
            self._journal.close()
            self._work_lock.release()
        if self._failure is not None:
            raise self._failure

    @property
    def results(self) -> list[RunResult]:
        """Every run, in the plan's order."""
        with self._lock:
            return list(self.state.results.values())

    def _record(self, *events: dict[str, Any], sync: bool = True) -> None:
        self._journal.append(*events, sync=sync)
        with self._lock:
            for event in events:
                changed = self.state.apply(event)
                if changed is not None:
                    self._texts.pop(changed, None)
        self._dirty.set()

    def _keep_manifest(self) -> None:
        """Rewrite the manifest when something changed, at most once a second: never once per event."""
        while not self._closing.is_set():
            self._dirty.wait()
            self._dirty.clear()
            try:
                self._write_manifest()
            except StoreError as exc:
                self._failure = exc
            self._closing.wait(MANIFEST_EVERY_S)
        try:
            self._write_manifest()
            self._failure = None
        except StoreError as exc:
            self._failure = exc

    def _write_manifest(self) -> None:
        """The text of each result is kept, so that a rewrite costs little more than the writing."""
        with self._lock:
            for run_id, result in self.state.results.items():
                if run_id not in self._texts:
                    self._texts[run_id] = _text(result, "    ")
            head = json.dumps(self.state._head(), indent=2, ensure_ascii=False)
            texts = [self._texts[run_id] for run_id in self.state.results]
        body = ",\n".join(texts)
        write_whole(self.folder / "manifest.json", f'{head[:-2]},\n  "results": [\n{body}\n  ]\n}}\n'.encode())


def _text(result: RunResult, indent: str = "") -> str:
    """A result as JSON for people, a line per key. Line by line, because `json.dumps(indent=…)` is slow."""
    lines = ",\n".join(f'{indent}  "{key}": {encode(value)}' for key, value in result.to_json().items())
    return f"{indent}{{\n{lines}\n{indent}}}"


def _task_result(batch: Path, run_id: str) -> Path:
    return batch / "task_results" / f"{run_id}.json"


def _write_task_result(batch: Path, result: RunResult) -> None:
    place, content = _task_result(batch, result.run_id), f"{_text(result)}\n".encode()
    with contextlib.suppress(OSError):
        if place.read_bytes() == content:
            return
    write_whole(place, content, durable=False)


def _claim_stamp(root: DataRoot, name: str) -> str:
    """A second that no other batch has. All benchmarks share the run ids, so the first run's folder is the claim."""
    moment = datetime.now(UTC).replace(microsecond=0)
    try:
        make_folder(root.runs)
        for _ in range(3600):
            stamp = moment.strftime(_STAMP_FORMAT)
            try:
                (root.runs / f"{stamp}-0").mkdir()
            except FileExistsError:
                moment += timedelta(seconds=1)
                continue
            sync_folder(root.runs)
            make_folder(root.rollouts / name / stamp)
            return stamp
    except OSError as exc:
        raise StoreError(f"{root.path}: cannot be written: {exc.strerror}") from exc
    raise StoreError(f"{root.runs}: no free stamp within the next hour")


def creation_lock(root: DataRoot) -> FileLock:
    """Held while a batch's folders are made, so that whoever removes what never began leaves it alone."""
    folder = root.cache / "locks"
    try:
        make_folder(folder)
    except OSError as exc:
        raise StoreError(f"{root.path}: cannot be written: {exc.strerror}") from exc
    return FileLock(folder / "batches.lock")


@cache
def stamp_time(text: str) -> datetime | None:
    """The instant that a stamp names; None for what is no stamp."""
    with contextlib.suppress(ValueError):
        if _STAMP.fullmatch(text):
            return datetime.strptime(text, _STAMP_FORMAT).replace(tzinfo=UTC)
    return None


def refresh_abandoned(root: DataRoot) -> None:
    """Bring up to date what a process that died left behind its journal. Batches at work are left alone."""
    for place in batches(root):
        manifest, journal = place.folder / "manifest.json", place.folder / "events.jsonl"
        with contextlib.suppress(StoreError, OSError):
            behind = journal.stat().st_mtime_ns >= manifest.stat().st_mtime_ns
            if behind or holder(place.folder / ".lock") is not None:
                Batch.open(root, place, restoring=True).close()


def _restore(root: DataRoot, folder: Path, state: BatchState) -> None:
    """Make everything derived from the journal again, where it is not as it should be."""
    for each in (folder, folder / "task_results"):
        remove_stale(each)
    results = list(state.results.values())
    for result in results:
        if result.status.is_end:
            _write_task_result(folder, result)
        else:
            _task_result(folder, result.run_id).unlink(missing_ok=True)
    _write_lists(root, folder, results)
    write_json(folder / "manifest.json", state.manifest())


def _write_lists(root: DataRoot, folder: Path, results: Sequence[RunResult]) -> None:
    """`runs.txt`, and the file in `temp/` that names the same runs."""
    run_dirs = [result.run_dir for result in results]
    write_whole(folder / "runs.txt", "".join(f"{run_dir}\n" for run_dir in run_dirs).encode())
    temp = root.rollouts / "temp" / f"rollout_{folder.parent.name}__{folder.name}.json"
    make_folder(temp.parent)
    write_json(temp, {
        "created_at": folder.name,
        "rollout_dir": shown_path(folder),
        "runs": run_dirs,
        "tasks": sorted({result.task_dir for result in results}),
    })  # fmt: skip


@dataclass(frozen=True)
class BatchPlace:
    """A batch on disk, found by name."""

    name: str
    stamp: str
    folder: Path


def batches(root: DataRoot, name: str | None = None) -> list[BatchPlace]:
    """All batches, or those of one benchmark, oldest first. One killed before its first manifest never began."""
    names = [name] if name else sorted(_names(root))
    found = [
        BatchPlace(each, folder.name, folder)
        for each in names
        for folder in _folders(root.rollouts / each)
        if _STAMP.fullmatch(folder.name) and _began(folder)
    ]
    return sorted(found, key=lambda place: (place.stamp, place.name))


def _began(folder: Path) -> bool:
    try:
        return (folder / "manifest.json").exists()
    except OSError as exc:  # someone else's batch, in a folder shared with others
        log.warning("%s: cannot be read: %s", folder, exc.strerror)
        return False


def find_batch(root: DataRoot, name: str, rollout: str | None = None) -> BatchPlace:
    """The newest batch of a benchmark, or the one of a stamp, or the newest of a day (`YYYYMMDD`)."""
    if not is_name(name):
        raise NotFoundError(f"{name!r} is not the name of a benchmark")
    found = batches(root, name)
    if not found:
        known = sorted(set(_names(root)) - {name})  # its own folder may hold batches that never began
        listed = f"; there are {', '.join(known)}" if known else "; nothing was run here yet"
        raise NotFoundError(f"{root.rollouts}: no batch of a benchmark {name}{did_you_mean(name, known) or listed}")
    chosen = [place for place in found if rollout is None or place.stamp == rollout or place.stamp[:8] == rollout]
    if not chosen:
        stamps = [place.stamp for place in found]
        raise NotFoundError(f"{root.rollouts / name}: no batch {rollout}; the newest are {', '.join(stamps[-5:])}")
    return chosen[-1]


def _names(root: DataRoot) -> Iterator[str]:
    return (folder.name for folder in _folders(root.rollouts) if folder.name != "temp" and is_name(folder.name))


def _folders(folder: Path) -> list[Path]:
    try:
        return [entry for entry in folder.iterdir() if entry.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise StoreError(f"{folder}: cannot be read: {exc.strerror}") from exc


def describe_batches(root: DataRoot, name: str | None) -> list[dict[str, Any]]:
    """What `list` says about each batch."""
    if name is not None:
        find_batch(root, name)
    rows = []
    for place in batches(root, name):
        try:
            state = BatchState.load(place.folder)
        except StoreError as exc:
            log.warning("%s", exc)  # one damaged batch must not hide the others
            continue
        counts = Counter(result.status for result in state.results.values())
        rows.append({
            "name": place.name,
            "stamp": place.stamp,
            "state": _state(place, state),
            "backend": state.header.get("backend", "?"),
            "runs": len(state.results),
            "status": {status.value: count for status, count in counts.items()},
            "finished_at": state.finished_at,
            "rollout_dir": shown_path(place.folder),
        })  # fmt: skip
    return rows


def _state(place: BatchPlace, state: BatchState) -> str:
    if is_held(place.folder / ".lock"):
        return "running"
    return "finished" if state.finished_at else "stopped"
