"""Expenses to a report: numbers only."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from csvreport.reader import Expense


@dataclass(frozen=True)
class Row:
    name: str
    count: int
    total: float


@dataclass(frozen=True)
class Report:
    rows: tuple[Row, ...]

    @property
    def count(self) -> int:
        return sum(row.count for row in self.rows)

    @property
    def total(self) -> float:
        return sum(row.total for row in self.rows)


def summarize(expenses: Iterable[Expense]) -> Report:
    """Add up the expenses of each category, largest total first."""
    groups: defaultdict[str, list[float]] = defaultdict(list)
    for expense in expenses:
        groups[expense.category].append(expense.amount)
    rows = [Row(name, len(amounts), sum(amounts)) for name, amounts in groups.items()]
    return Report(tuple(sorted(rows, key=lambda row: (-row.total, row.name))))
