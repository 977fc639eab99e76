"""Exact sums, and amounts that are refused."""

from decimal import Decimal

import pytest

from csvreport import ReportError, read_expenses, summarize
from csvreport.text import render_text

HEADER = "date,category,amount\n"


def lines(*records: str) -> list[str]:
    return (HEADER + "".join(records)).splitlines(keepends=True)


def test_amounts_are_decimals():
    (expense,) = read_expenses(lines("2024-03-01,food,0.10\n"))
    assert isinstance(expense.amount, Decimal)
    assert expense.amount == Decimal("0.1")


def test_sums_are_exact():
    report = summarize(read_expenses(lines(*["2024-03-01,food,0.1\n"] * 1000, "2024-03-01,rent,0.2\n")))
    assert [row.total for row in report.rows] == [Decimal(100), Decimal("0.2")]
    assert report.total == Decimal("100.2")


def test_totals_of_nothing_are_decimals():
    assert isinstance(summarize([]).total, Decimal)


def test_sums_are_rounded_half_up_when_shown():
    report = summarize(read_expenses(lines("2024-03-01,a,0.125\n", "2024-03-01,b,-0.125\n")))
    assert [line.split()[-1] for line in render_text(report).splitlines()] == ["Total", "0.13", "-0.13", "0.00"]


def test_only_the_shown_sum_is_rounded():
    report = summarize(read_expenses(lines("2024-03-01,a,0.004\n", "2024-03-01,b,0.004\n")))
    assert [line.split()[-1] for line in render_text(report).splitlines()] == ["Total", "0.00", "0.00", "0.01"]


def test_amounts_that_are_not_finite():
    for amount in ("abc", "", "NaN", "Infinity", "-inf"):
        with pytest.raises(ReportError) as caught:
            list(read_expenses(lines("2024-03-01,food,1\n", f"2024-03-01,food,{amount}\n")))
        assert str(caught.value) == f"line 3: amount: not a number: {amount!r}"


def test_bad_date():
    with pytest.raises(ReportError, match="line 2: date: not a date: 'today'"):
        list(read_expenses(lines("today,food,1\n")))


def test_line_number_after_blank_lines():
    with pytest.raises(ReportError, match="line 5: amount"):
        list(read_expenses(lines("2024-03-01,food,1\n", "\n", "\n", "2024-03-01,food,x\n")))


def test_line_number_after_a_field_of_two_lines():
    with pytest.raises(ReportError, match="line 4: amount"):
        list(read_expenses(lines('2024-03-01,"a\nb",1\n', "2024-03-01,food,x\n")))
