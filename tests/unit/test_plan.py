"""Plans: which runs a benchmark means, in which order, and what names them."""

import builtins
import time
from pathlib import Path
from typing import Any

import pytest

from rollouts.config import Benchmark
from rollouts.errors import ConfigError
from rollouts.plan import RunSpec, make_plan
from rollouts.tasks import Task
from tests.samples import make_benchmark, make_task, write_task


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return make_task(tmp_path / "task_1")


def entry(**keys: Any) -> dict[str, Any]:
    return {"prepared_dir": "t", "model": "gpt-4", **keys}


def plan(task: Task, *entries: dict[str, Any], only: str | None = None, **keys: Any) -> tuple[RunSpec, ...]:
    benchmark = make_benchmark(tasks=list(entries or (entry(),)), **keys)
    return make_plan(benchmark, [[task]] * len(benchmark.tasks), only)


def test_models_and_rollouts_make_a_matrix_in_order(task: Task, tmp_path: Path) -> None:
    other = make_task(tmp_path / "task_2")
    benchmark = make_benchmark(tasks=[entry(model=None, models=["gpt-4", "claude-3"], rollouts=2)])
    specs = make_plan(benchmark, [[task, other]])
    assert [(spec.index, spec.task.task_id, spec.model, spec.agent, spec.rollout) for spec in specs] == [
        (0, "task_1", "gpt-4", "codex", 0),
        (1, "task_1", "gpt-4", "codex", 1),
        (2, "task_1", "claude-3", "claude-code", 0),
        (3, "task_1", "claude-3", "claude-code", 1),
        (4, "task_2", "gpt-4", "codex", 0),
        (5, "task_2", "gpt-4", "codex", 1),
        (6, "task_2", "claude-3", "claude-code", 0),
        (7, "task_2", "claude-3", "claude-code", 1),
    ]


def test_a_sweep_over_variables_gives_each_entry_its_own(task: Task) -> None:
    specs = plan(task, entry(environment_variables={"T": "0"}), entry(environment_variables={"T": "1"}), entry())
    assert [dict(spec.env) for spec in specs] == [{"T": "0"}, {"T": "1"}, {}]
    assert len({spec.key for spec in specs}) == 3


def test_limits_come_from_variables_else_the_entry_else_the_file(task: Task) -> None:
    specs = plan(
        task,
        entry(environment_variables={"TIMEOUT_SEC": "90", "TOKEN_LIMIT": "500"}, timeout_s=60),
        entry(timeout_s=60),
        entry(),
        timeout_s=30,
        budget={"max_tokens_per_run": 1000},
    )
    assert [(spec.timeout_s, spec.max_tokens) for spec in specs] == [(90.0, 500), (60.0, 1000), (30.0, 1000)]
    assert specs[0].env == {"TIMEOUT_SEC": "90", "TOKEN_LIMIT": "500"}


def test_variables_of_the_overrides_are_beaten_by_the_entrys(tmp_path: Path) -> None:
    task = make_task(
        tmp_path / "t", overrides={"environment_variables": {"A": "task", "B": "task", "TIMEOUT_SEC": "7"}}
    )
    spec = plan(task, entry(environment_variables={"B": "entry"}))[0]
    assert spec.env == {"A": "task", "B": "entry", "TIMEOUT_SEC": "7"}
    assert spec.timeout_s == 7.0


def test_only_keeps_tasks_and_models_by_glob_and_counts_what_is_kept(task: Task, tmp_path: Path) -> None:
    other = make_task(tmp_path / "other_folder", meta={"task_id": "second"})
    benchmark = make_benchmark(tasks=[entry(model=None, models=["gpt-4", "claude-3"])])

    def kept(only: str) -> list[tuple[int, str, str]]:
        return [(spec.index, spec.task.task_id, spec.model) for spec in make_plan(benchmark, [[task, other]], only)]

    assert kept("task_*") == [(0, "task_1", "gpt-4"), (1, "task_1", "claude-3")]
    assert kept("second") == [(0, "second", "gpt-4"), (1, "second", "claude-3")]
    assert kept("other_*") == [(0, "second", "gpt-4"), (1, "second", "claude-3")]
    assert kept("claude*") == [(0, "task_1", "claude-3"), (1, "second", "claude-3")]


def test_only_that_matches_nothing_is_told_with_what_there_is(task: Task) -> None:
    with pytest.raises(ConfigError, match=r"^--only: nothing matches 'nope'; the tasks are task_1$"):
        plan(task, only="nope")


def test_a_plan_beyond_reason_is_refused(task: Task) -> None:
    benchmark = make_benchmark(tasks=[entry(rollouts=60_000), entry(rollouts=60_000)])
    with pytest.raises(ConfigError, match="more than 100,000 runs planned"):
        make_plan(benchmark, [[task], [task]])


def test_rollouts_of_one_entry_have_keys_of_their_own_and_the_same_each_time(task: Task) -> None:
    first, again = plan(task, entry(rollouts=3)), plan(task, entry(rollouts=3))
    assert len({spec.key for spec in first}) == 3
    assert [spec.key for spec in first] == [spec.key for spec in again]


def test_keys_of_the_first_runs_stay_when_more_rollouts_are_wanted(task: Task) -> None:
    assert [spec.key for spec in plan(task, entry(rollouts=5))][:3] == [
        spec.key for spec in plan(task, entry(rollouts=3))
    ]


def test_an_entry_that_stands_twice_gets_keys_of_its_own(task: Task) -> None:
    once, twice = plan(task, entry(rollouts=4)), plan(task, entry(rollouts=2), entry(rollouts=2))
    assert len({spec.key for spec in twice}) == 4
    assert [(spec.entry, spec.rollout) for spec in twice] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [spec.key for spec in twice] == [spec.key for spec in once]


def test_an_entry_between_two_equal_ones_does_not_change_their_keys(task: Task) -> None:
    plain = plan(task, entry(), entry())
    parted = plan(task, entry(), entry(model="claude-3"), entry())
    assert [parted[0].key, parted[2].key] == [spec.key for spec in plain]
    assert len({spec.key for spec in parted}) == 3


def test_a_task_that_two_globs_name_gets_different_keys(task: Task, tmp_path: Path) -> None:
    other = make_task(tmp_path / "task_2")
    benchmark = make_benchmark(tasks=[entry(), entry()])
    assert len({spec.key for spec in make_plan(benchmark, [[task, other], [other]])}) == 3


VARIANTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({}, {"model": "gpt-5"}),
    ({}, {"agent": "other"}),
    ({}, {"timeout_s": 5}),
    ({}, {"environment_variables": {"X": "1"}}),
    ({}, {"environment_variables": {"X": "2"}}),
    ({}, {"environment_variables": {"TOKEN_LIMIT": "5"}}),
    ({}, {"agent": "command", "command": "a"}),
    ({}, {"agent": "command", "command": "b"}),
    ({"command": "c"}, {"agent": "command"}),
    ({}, {"agent": "replay", "replay": "x"}),
    ({}, {"agent": "replay", "replay": "y"}),
    ({"limits": {"cpus": 1}}, {}),
    ({"limits": {"memory_mb": 64}}, {}),
    ({"limits": {"disk_mb": 64}}, {}),
    ({"profile": "compat"}, {}),
    ({"network": {"mode": "open"}}, {}),
    ({"network": {"allow": ["x"]}}, {}),
    ({"timeout_s": 77}, {}),
    ({"budget": {"max_tokens_per_run": 5}}, {}),
    ({"agents": {"mine": {"command": "a"}}, "agent": "mine"}, {}),
    ({"agents": {"mine": {"command": "b"}}, "agent": "mine"}, {}),
    ({"agents": {"mine": {"command": "b", "install": "i"}}, "agent": "mine"}, {}),
    ({"agents": {"mine": {"command": "b", "env": ["E"]}}, "agent": "mine"}, {}),
]


def test_each_content_has_a_key_of_its_own(task: Task) -> None:
    keys = [plan(task, entry(**changes), **keys)[0].key for keys, changes in VARIANTS]
    assert len(set(keys)) == len(VARIANTS)
    assert keys == [plan(task, entry(**changes), **keys)[0].key for keys, changes in VARIANTS]


def test_a_changed_task_or_override_changes_the_key(tmp_path: Path) -> None:
    keys = {plan(make_task(tmp_path / "1/t"))[0].key}
    keys.add(plan(make_task(tmp_path / "2/t", instructions="other"))[0].key)
    keys.add(plan(make_task(tmp_path / "3/t", repo={"main.py": "other"}))[0].key)
    keys.add(plan(make_task(tmp_path / "4/t", overrides={"remove_repo_paths": ["x"]}))[0].key)
    assert len(keys) == 4


@pytest.mark.parametrize(
    "keys", [{"parallel": 8}, {"retries": 0}, {"name": "other"}, {"backend": "local"}, {"pass_threshold": 0.1}]
)
def test_what_only_says_how_to_run_does_not_change_the_key(keys: dict[str, Any], task: Task) -> None:
    assert plan(task, **keys)[0].key == plan(task)[0].key


def test_planning_touches_neither_disk_nor_clock(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a plan is pure")

    benchmark: Benchmark = make_benchmark(tasks=[entry(rollouts=2)])
    for owner, name in ((builtins, "open"), (Path, "open"), (Path, "stat"), (time, "time"), (time, "monotonic")):
        monkeypatch.setattr(owner, name, refuse)
    specs = make_plan(benchmark, [[task]])
    monkeypatch.undo()
    assert len(specs) == 2


def test_ten_thousand_runs_are_planned_in_a_moment(tmp_path: Path) -> None:
    tasks = [make_task(write_task(tmp_path / f"t{n}")) for n in range(10)]
    benchmark = make_benchmark(tasks=[entry(model=None, models=[f"m{n}" for n in range(10)], rollouts=100)])
    began = time.process_time()
    assert len(make_plan(benchmark, [tasks])) == 10_000
    assert time.process_time() - began < 2.0
