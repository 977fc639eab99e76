"""What must be true of a project after its command was killed, and after the next command mended it."""

import contextlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollouts.errors import RolloutsError
from rollouts.files import read_journal
from rollouts.results import RunResult, Status
from rollouts.store import BatchState
from tests.command_line import Project
from tests.kill_points import Commands, Tried

MOST_TOLD = 10
"""After so many points that went wrong the rest is not tried."""
LOCKS = (".lock", ".eval.lock")
_CHECK = 'grep -qx world hello.txt && echo "ok 1 - world" || echo "not ok 1 - world"\necho 1..1\n'
_META = {
    "task_id": "greet",
    "lm": {"instructions": "Greet the world.\n"},
    "evaluation": {
        "rubrics": [{"id": "words", "criterion": "It greets the world"}],
        "test_scripts": [{"path": "tests/check.sh", "rubric_id": "words", "content": _CHECK}],
        "command": "sh tests/check.sh",
        "fail_to_pass": ["world"],
    },
}
SOLVE = "sed -i s/hello/world/ hello.txt; echo done"


def make_project(folder: Path, *, runs: int = 2, parallel: int = 1, command: str = SOLVE) -> Path:
    """A project with one quick task and a benchmark file of so many runs."""
    project = Project(folder)
    project.task(**{"tb_meta.json": json.dumps(_META)})
    text = f'agent = "command"\ncommand = "{command}"\nbackend = "local"\nparallel = {parallel}\n'
    project.config(f'{text}[[tasks]]\nprepared_dir = "tasks/greet"\nrollouts = {runs}\n')
    return folder


def copy_project(template: Path, folder: Path) -> Path:
    """The same again. The cache is shared: it holds what is named by its content."""
    shutil.copytree(template, folder, symlinks=True, ignore=lambda at, names: {"cache"} & set(names))
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data/cache").symlink_to((template / "data/cache").resolve())
    return folder


def batch_folders(folder: Path) -> list[Path]:
    """Those of the benchmark. One that has no manifest never began."""
    return sorted(path.parent for path in (folder / "data/rollouts/bench").glob("*/manifest.json"))


def files_of(run: Path) -> dict[str, bytes]:
    """What a run left, without what scoring adds to it."""
    kept = ("result.json", "artifacts/diff.patch", "artifacts/notes.md", "logs/agent.log", "logs/sandbox.log")
    return {name: (run / name).read_bytes() for name in kept if (run / name).exists()}


@dataclass(frozen=True)
class Left:
    """What a killed command left of a batch."""

    ended: dict[str, tuple[RunResult, dict[str, bytes]]]
    """Runs that the journal calls ended, and their files."""
    cut_off: dict[str, dict[str, bytes]]
    """Runs that were begun and not ended, and what they had written."""
    verdicts: dict[str, bytes]
    """`evaluation_results.json` of the runs that have one."""
    began: bool

    @staticmethod
    def by(folder: Path) -> "Left":
        """Look right after the kill."""
        ended, cut_off, began = {}, {}, False
        for batch in batch_folders(folder):
            for manifest in batch.glob("*manifest.json"):
                json.loads(manifest.read_bytes())
            began = True
            for run_id, result in BatchState.load(batch).results.items():
                files = files_of(folder / "data/runs" / run_id)
                if result.status.is_end:
                    ended[run_id] = (result, files)
                elif result.status is Status.RUNNING:
                    cut_off[run_id] = files
        found = sorted((folder / "data/runs").glob("*/evaluation_results.json"))
        return Left(ended, cut_off, {path.parent.name: path.read_bytes() for path in found}, began)


def check_readable(commands: Commands, folder: Path) -> None:
    """`list` and `summarize` answer whatever was left behind."""
    listed = commands(folder, "list", "--json")
    assert listed.code == 0, f"list: {listed}"
    summary = commands(folder, "summarize", "bench")
    if listed.json()["batches"]:
        assert summary.code == 0, f"summarize: {summary}"
    else:
        assert summary.code == 2, f"summarize: {summary}"
        assert "no batch" in summary.err or "nothing was run" in summary.err, f"summarize: {summary}"


def finish(commands: Commands, folder: Path, left: Left) -> None:
    """What a user does next: resume, or run again when there is nothing to resume."""
    done = commands(folder, "resume", "bench")
    if done.code == 2 and "no batch" in done.err:
        assert not left.began, f"the batch cannot be found: {done}"
        done = commands(folder, "run", "bench.toml")
    assert done.code == 0, f"next command: {done}"
    same("boxes left behind", commands.boxes(), [])


@contextlib.contextmanager
def naming(tried: Tried) -> Iterator[None]:
    """Say after which kill something was wrong."""
    try:
        yield
    except (AssertionError, OSError, ValueError, RolloutsError) as exc:
        raise AssertionError(f"after {tried}\n  {type(exc).__name__}: {exc}") from exc


def check_scored(folder: Path, left: Left) -> None:
    """Every run has its verdict, and one that was there before is the same."""
    (batch,) = batch_folders(folder)
    manifest = json.loads((batch / "eval_manifest.json").read_bytes())
    assert manifest["finished_at"], "eval_manifest.json is not finished"
    same("outcomes", {line["outcome"] for line in manifest["results"]}, {"resolved"})
    found = {
        line["run_id"]: (folder / line["run_dir"] / "evaluation_results.json").read_bytes()
        for line in manifest["results"]
    }
    same("scored runs", set(found), set(BatchState.load(batch).results))
    same("outcomes of runs", {json.loads(content)["outcome"] for content in found.values()}, {"resolved"})
    for run_id, content in left.verdicts.items():
        assert found[run_id] == content, f"{run_id} was scored again"


def check_whole(folder: Path, left: Left) -> None:
    """Every run ended once and well, everything derived is what the journal says, and nothing temporary is left."""
    states = {batch: BatchState.load(batch) for batch in batch_folders(folder)}
    same("batches", len(states), 1)
    for batch, state in states.items():
        _check_batch(folder, batch, state)
    results = {run_id: result for state in states.values() for run_id, result in state.results.items()}
    for run_id, (result, files) in left.ended.items():
        if result.status is Status.LAUNCHED:
            assert results[run_id] == result, f"{run_id} was touched after its end"
            assert files_of(folder / "data/runs" / run_id) == files, f"{run_id}: files were touched after its end"
    for run_id, files in left.cut_off.items():
        assert results[run_id].attempt > 1, f"{run_id} was not tried again"
        _check_kept(folder / "data/runs" / run_id, files)
    same("temporary files", temporaries(folder), [])
    same("run folders", sorted(path.name for path in (folder / "data/runs").iterdir()), sorted(results))
    same("batch folders", sorted((folder / "data/rollouts/bench").iterdir()), sorted(states))
    same("files in temp/", len(list((folder / "data/rollouts/temp").iterdir())), len(states))


def _check_batch(folder: Path, batch: Path, state: BatchState) -> None:
    results = list(state.results.values())
    same("statuses", [str(result.status) for result in results], [Status.LAUNCHED.value] * len(results))
    assert state.finished_at is not None, "not finished"
    same("manifest.json", json.loads((batch / "manifest.json").read_bytes()), state.manifest())
    same("runs.txt", (batch / "runs.txt").read_text().splitlines(), [result.run_dir for result in results])
    same("config.toml", (batch / "config.toml").read_bytes(), (folder / "bench.toml").read_bytes())
    told = {path.stem: json.loads(path.read_bytes()) for path in (batch / "task_results").iterdir()}
    same("task_results", told, {result.run_id: result.to_json() for result in results})
    temp = json.loads((folder / f"data/rollouts/temp/rollout_bench__{batch.name}.json").read_bytes())
    same("temp/rollout_….json", temp["runs"], [result.run_dir for result in results])
    for result in results:
        run = folder / "data/runs" / result.run_id
        same("result.json", json.loads((run / "result.json").read_bytes()), result.to_json())
        same("changed lines", (run / "artifacts/diff.patch").read_bytes().count(b"\n+world\n"), 1)
        same("agent.log", (run / "logs/agent.log").read_bytes(), b"done\n")
    _check_events(list(read_journal(batch / "events.jsonl")))


def _check_events(events: list[dict[str, Any]]) -> None:
    """No run is begun again once it ended well, and none ends twice."""
    ended: Counter[str] = Counter()
    for event in events:
        if event["event"] == "started":
            assert not ended[event["run_id"]], f"{event['run_id']} ran again after its end"
        elif event["event"] == "ended" and event["run"]["status"] == Status.LAUNCHED:
            ended[event["run"]["run_id"]] += 1
    assert set(ended.values()) <= {1}, ended


def _check_kept(run: Path, files: dict[str, bytes]) -> None:
    """What an attempt had written before it was cut off is in one of the attempts put aside."""
    if files:
        kept = [files_of(attempt) for attempt in (run / "attempts").glob("*")]
        assert any(files.items() <= each.items() for each in kept), f"{run.name}: what was cut off is not kept"


def same(what: str, found: object, wanted: object) -> None:
    """Say which of many things differs."""
    assert found == wanted, f"{what}: {found!r} and not {wanted!r}"


def temporaries(folder: Path) -> list[str]:
    """Everything under data/ that nobody should find there, the cache aside."""
    data = folder / "data"
    found = (path.relative_to(data) for path in data.rglob("*") if not path.is_relative_to(data / "cache"))
    return sorted(str(path) for path in found if path.name.startswith(".") and path.name not in LOCKS)


def came_through(tried: Tried) -> bool:
    """Whether it was not killed: then there are no more points."""
    return not tried.was_killed


def go_through(
    points: Iterator[int], one: Callable[[int], Tried], until: Callable[[Tried], bool] = came_through
) -> None:
    """Try each point until a command comes through, and tell all that went wrong at once."""
    wrong = []
    for point in points:
        tried: Tried | None = None
        try:
            tried = one(point)
        except AssertionError as exc:
            wrong.append(f"point {point}: {exc}")
        if (tried is not None and until(tried)) or len(wrong) == MOST_TOLD:
            break
    else:
        wrong.append("no command came through")
    assert not wrong, f"{len(wrong)} points went wrong:\n" + "\n".join(wrong)
