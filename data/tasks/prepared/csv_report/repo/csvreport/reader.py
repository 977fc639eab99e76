"""CSV text to expenses."""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date

COLUMNS = ("date", "category", "amount")


class ReportError(Exception):
    """The input cannot be used; the message says where and why."""


@dataclass(frozen=True)
class Expense:
    date: date
    category: str
    amount: float


def read_expenses(lines: Iterable[str]) -> Iterator[Expense]:
    """Yield the expenses of a CSV file with a header line."""
    reader = csv.DictReader(lines)
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise ReportError(f"line 1: missing column: {', '.join(missing)}")
    for number, record in enumerate(reader, start=2):
        yield _expense(number, record)


def _expense(number: int, record: dict[str, str | None]) -> Expense:
    try:
        day = date.fromisoformat(record["date"] or "")
    except ValueError:
        raise ReportError(f"line {number}: date: not a date: {record['date']!r}") from None
    try:
        amount = float(record["amount"] or "")
    except ValueError:
        raise ReportError(f"line {number}: amount: not a number: {record['amount']!r}") from None
    return Expense(day, (record["category"] or "").strip(), amount)
