"""The verdict on one run: the record that `evaluation_results.json`, the scorecard and the tables are made from."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from rollouts.results import RunError
from rollouts.scoring.bending import Flag

SCHEMA = 1


class Outcome(StrEnum):
    """What came of scoring. `error` is ours and says nothing about the patch."""

    RESOLVED = "resolved"
    TESTS_FAILED = "tests_failed"
    NO_PATCH = "no_patch"
    APPLY_FAILED = "apply_failed"
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(frozen=True)
class RubricScore:
    """One rubric's share of the score."""

    id: str
    criterion: str
    weight: float
    score: float | None
    """None: it could not be judged; that is not 0."""
    judged_by: str
    """`tests`, `judge` or `nobody`."""
    passed: int | None = None
    total: int | None = None
    reason: str | None = None
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class TestResult:
    """One test's result, and what it was expected for."""

    __test__ = False  # not one of pytest's

    id: str
    status: str
    expected: str | None
    """`fail_to_pass`, `pass_to_pass`, or None for a test that no list names."""
    rubrics: tuple[str, ...]
    """The rubrics it counts for."""


@dataclass(frozen=True)
class Scored:
    """What the tests and judges say, before it is known whose run it was."""

    outcome: Outcome
    total_score: float | None
    coverage: float
    rubrics: tuple[RubricScore, ...] = ()
    tests: tuple[TestResult, ...] = ()
    standard_metrics: Mapping[str, Any] = field(default_factory=dict)
    custom_metrics: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[Flag, ...] = ()
    notes: tuple[str, ...] = ()
    """For people: what else was noticed."""
    error: RunError | None = None
    applied: str | None = None
    """Which way of applying the patch worked."""
    duration_s: float | None = None

    @property
    def resolved(self) -> bool | None:
        """None when nobody can tell."""
        return None if self.outcome is Outcome.ERROR else self.outcome is Outcome.RESOLVED

    def to_json(self) -> dict[str, Any]:
        """The scored part of `evaluation_results.json`. Both places of `total_score` are read by people's scripts."""
        head = {
            "outcome": self.outcome.value,
            "resolved": self.resolved,
            "total_score": self.total_score,
            "coverage": self.coverage,
        }
        return {
            **head,
            "evaluation": {**head, "rubrics": [asdict(rubric) for rubric in self.rubrics]},
            "standard_metrics": dict(self.standard_metrics),
            "custom_metrics": dict(self.custom_metrics),
            "test_results": [asdict(test) for test in self.tests],
            "flags": [asdict(flag) for flag in self.flags],
            "notes": list(self.notes),
            "applied": self.applied,
            "error": asdict(self.error) if self.error else None,
        }
