"""Which run of a batch is which run of its benchmark now."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rollouts.plan import RunSpec, make_plan
from rollouts.results import RunResult, Status
from rollouts.resuming import _changed_parts, _is_missing, _match
from tests.samples import make_benchmark, make_result, make_task


@pytest.fixture
def specs(tmp_path: Path) -> tuple[RunSpec, ...]:
    """Two tasks, two turns each."""
    tasks = [make_task(tmp_path / name) for name in ("one", "two")]
    entries = [{"prepared_dir": "x", "agent": "nop", "rollouts": 2}] * 2
    return make_plan(make_benchmark(tasks=entries), [[task] for task in tasks])


def results_of(specs: Sequence[RunSpec]) -> list[RunResult]:
    return [
        make_result(
            run_id=f"20260101__00-00-00-{spec.index}",
            task_id=spec.task.task_id,
            model=spec.model,
            agent=spec.agent,
            rollout=spec.rollout,
            key=spec.key,
        )
        for spec in specs
    ]


def indexes(specs: Sequence[RunSpec], found: dict[str, RunSpec]) -> dict[int, str]:
    """For each run's number the key that it got."""
    return {int(run_id.rpartition("-")[2]): spec.key for run_id, spec in found.items()}


def test_an_unchanged_benchmark_has_the_same_runs_whatever_their_order(specs: tuple[RunSpec, ...]) -> None:
    found = _match(results_of(specs), specs[::-1])
    assert not found.changed
    assert indexes(specs, dict(found.specs)) == {spec.index: spec.key for spec in specs}
    assert all(spec.index == int(run_id.rpartition("-")[2]) for run_id, spec in found.specs.items())


def test_runs_of_other_content_are_paired_by_task_model_agent_and_turn(specs: tuple[RunSpec, ...]) -> None:
    changed = [replace(spec, key=f"new-{spec.index}") if spec.task.task_id == "two" else spec for spec in specs]
    found = _match(results_of(specs), changed)
    assert (found.different, found.gone, found.added, found.changed) == (2, 0, 0, True)
    assert indexes(specs, dict(found.specs)) == {0: specs[0].key, 1: specs[1].key, 2: "new-2", 3: "new-3"}


def test_runs_that_are_gone_or_new_are_counted_and_not_mixed_up(specs: tuple[RunSpec, ...]) -> None:
    new = replace(specs[3], key="new", rollout=7)
    found = _match(results_of(specs), [*specs[:3], new])
    assert (found.different, found.gone, found.added) == (0, 1, 1)
    assert set(found.specs) == {result.run_id for result in results_of(specs)[:3]}


@pytest.mark.parametrize("status", Status)
def test_what_is_missing(status: Status) -> None:
    ours = {Status.PENDING, Status.RUNNING, Status.CANCELLED, Status.SANDBOX_FAILED}
    assert _is_missing(make_result(status=status), retry_failed=False) is (status in ours)
    assert _is_missing(make_result(status=status), retry_failed=True) is (status is not Status.LAUNCHED)


def test_parts_that_differ_are_told_apart() -> None:
    before, after = {"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "x", "d": "4"}
    assert _changed_parts(before, after) == [("b", "changed"), ("c", "gone"), ("d", "new")]
