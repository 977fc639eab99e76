"""What a power cut would leave: content, then its name, then the folder's name, and all of it before anyone is told.

A killed process does not show this, since the kernel keeps what it wrote. So the order of what a command does is
recorded, and played to a disk that forgets everything that was not synced.
"""

import json
import re
from pathlib import Path, PurePosixPath

import pytest

from tests.kill_points import Commands, Step
from tests.killed import make_project

RUNS = 2


class Disk:
    """What would still be there after a power cut, by the steps played so far. A folder that is removed stays known."""

    def __init__(self) -> None:
        self._lost_names: set[str] = set()
        """Made, and their folder not synced since."""
        self._folders: set[str] = set()
        self._whole: set[str] = set()
        """Files whose content was synced after the last write."""
        self._events: list[str] = []
        self.events: tuple[str, ...] = ()
        """The journal's lines that are on disk for sure."""

    def play(self, step: Step) -> None:
        match step.what:
            case "mkdir":
                self._make_folder(step.path)
            case "open":
                self._lost_names.add(step.path)
            case "write":
                self._whole.discard(step.path)
                self._events += step.more.splitlines()
            case "rename":
                self._lost_names.add(step.path)
                self._whole -= {step.path}
                self._whole |= {step.path} if step.more in self._whole else set()
            case "sync":
                self._whole.add(step.path)
                self._lost_names -= {name for name in self._lost_names if str(PurePosixPath(name).parent) == step.path}
                if step.path.endswith("/events.jsonl"):
                    self.events = tuple(self._events)

    def _make_folder(self, path: str) -> None:
        """Steps are recorded before they are done: one below a folder that is made only now had failed."""
        self._folders = {name for name in self._folders if not name.startswith(f"{path}/")}
        if path not in self._folders:
            self._folders.add(path)
            self._lost_names.add(path)

    def keeps(self, path: str) -> bool:
        """Whether the file would be there, whole, below folders that would be there."""
        names = {path, *map(str, PurePosixPath(path).parents)}
        return path in self._whole and not names & self._lost_names

    def keeps_event(self, kind: str, run_id: str) -> bool:
        told = (json.loads(line) for line in self.events)
        return any(event["event"] == kind and event.get("run", {}).get("run_id") == run_id for event in told)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, tuple[Step, ...]]:
    """What `run`, and then `eval`, of a small batch did, and the batch's stamp."""
    folder = make_project(tmp_path_factory.mktemp("recorded"), runs=RUNS)
    with Commands() as commands:
        ran = commands(folder, "run", "bench.toml")
        assert ran.code == 0, ran
        scored = commands(folder, "eval", "bench")
        assert scored.code == 0, scored
    (batch,) = (folder / "data/rollouts/bench").iterdir()
    return batch.name, (*ran.steps, *scored.steps)


def moments(steps: tuple[Step, ...], pattern: str, what: str = "say") -> list[tuple[Disk, Step]]:
    """The disk as it was at each step of a kind that matches; there is at least one."""
    found = []
    for number, step in enumerate(steps):
        text = step.more if what == "write" else step.path
        if step.what == what and re.search(pattern, text):
            disk = Disk()
            for earlier in steps[:number]:
                disk.play(earlier)
            found.append((disk, step))
    assert found, f"nothing like {what} {pattern}"
    return found


def test_content_is_synced_before_it_gets_its_name(recorded: tuple[str, tuple[Step, ...]]) -> None:
    _, steps = recorded
    names = set()
    for disk, step in moments(steps, r"^data/(rollouts|runs)/", "rename"):
        name = PurePosixPath(step.path).name
        if name not in ("scoring_results.md",) and "/task_results/" not in step.path and "/.outputs/" not in step.path:
            assert disk.keeps(step.more) or step.more in disk._whole, f"{step.path} is renamed before it is synced"
            names.add(re.sub(r"__[\d_-]+", "", name))
    assert names >= {
        "config.toml",
        "manifest.json",
        "runs.txt",
        "rollout_bench.json",
        "result.json",
        "diff.patch",
        "notes.md",
        "repo_info.json",
        "evaluation_results.json",
        "eval_manifest.json",
    }


def test_a_batch_is_on_disk_with_all_its_folders_before_it_is_told_of(recorded: tuple[str, tuple[Step, ...]]) -> None:
    stamp, steps = recorded
    ((disk, _),) = moments(steps, r"\[rollouts\] output=")
    batch = f"data/rollouts/bench/{stamp}"
    for name in ("config.toml", "events.jsonl", "runs.txt", "manifest.json"):
        assert disk.keeps(f"{batch}/{name}"), f"a power cut would lose {name}"
    assert disk.keeps(f"data/rollouts/temp/rollout_bench__{stamp}.json")
    assert [json.loads(line)["event"] for line in disk.events if "planned" in line] == ["planned"] * RUNS


def test_what_a_run_left_is_on_disk_before_the_journal_says_that_it_ended(
    recorded: tuple[str, tuple[Step, ...]],
) -> None:
    _, steps = recorded
    ends = moments(steps, '"event": "ended"', "write")
    assert len(ends) == RUNS
    for disk, step in ends:
        run_id = json.loads(step.more)["run"]["run_id"]
        for name in ("result.json", "artifacts/diff.patch", "artifacts/notes.md", "artifacts/repo_info.json"):
            assert disk.keeps(f"data/runs/{run_id}/{name}"), f"a power cut would lose {run_id}/{name}"


@pytest.mark.parametrize(("what", "pattern"), [("say", r"Task (\S+) completed"), ("free", r"/([^/]+-\d+)\.1-\d+$")])
def test_an_end_is_in_the_journal_before_it_is_told_and_before_the_box_is_freed(
    what: str, pattern: str, recorded: tuple[str, tuple[Step, ...]]
) -> None:
    _, steps = recorded
    found = moments(steps, pattern, what)
    assert len(found) == RUNS
    for disk, step in found:
        match = re.search(pattern, step.path)
        assert match
        assert disk.keeps_event("ended", match[1]), f"{match[1]} is told before it is on disk"


def test_a_verdict_is_on_disk_before_it_is_told(recorded: tuple[str, tuple[Step, ...]]) -> None:
    _, steps = recorded
    found = moments(steps, r"Run (\S+) scored")
    assert len(found) == RUNS
    for disk, step in found:
        match = re.search(r"Run (\S+) scored", step.path)
        assert match
        assert disk.keeps(f"data/runs/{match[1]}/evaluation_results.json")


def test_when_a_command_is_over_everything_it_derived_is_on_disk(recorded: tuple[str, tuple[Step, ...]]) -> None:
    stamp, steps = recorded
    ((disk, _),) = moments(steps, "All 2 tasks completed")
    assert disk.keeps(f"data/rollouts/bench/{stamp}/manifest.json")
    assert json.loads(disk.events[-1])["event"] == "finished"
    for step in steps:
        disk.play(step)
    assert disk.keeps(f"data/rollouts/bench/{stamp}/eval_manifest.json")


def test_the_recording_would_show_a_missing_sync(recorded: tuple[str, tuple[Step, ...]]) -> None:
    """Each file by itself: without its sync, or that of its folder, it counts as lost."""
    stamp, steps = recorded
    manifest = f"data/rollouts/bench/{stamp}/manifest.json"
    for forgotten in (f"data/rollouts/bench/{stamp}", "/.manifest.json"):
        disk = Disk()
        for step in steps:
            if not (step.what == "sync" and (step.path == forgotten or forgotten in step.path.removeprefix(manifest))):
                disk.play(step)
        assert not disk.keeps(manifest)


def test_the_folder_of_the_project_itself_counts_as_there(tmp_path: Path) -> None:
    disk = Disk()
    for step in (Step("open", "x"), Step("write", "x"), Step("sync", "x")):
        disk.play(step)
    assert not disk.keeps("x")
    disk.play(Step("sync", "."))
    assert disk.keeps("x")
