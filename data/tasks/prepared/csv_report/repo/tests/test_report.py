from datetime import date

import pytest

from csvreport import ReportError, read_expenses, summarize
from csvreport.text import render_text

LINES = ["amount,category,date\n", "5,food,2024-03-04\n", "100,rent,2024-03-01\n", "7,food,2024-04-01\n"]


def test_columns_in_any_order():
    first = next(read_expenses(LINES))
    assert (first.date, first.category, first.amount) == (date(2024, 3, 4), "food", 5)


def test_missing_columns():
    with pytest.raises(ReportError, match="line 1: missing column: date, amount"):
        list(read_expenses(["category\n", "food\n"]))


def test_bad_amount():
    with pytest.raises(ReportError, match="line 2: amount: not a number: 'abc'"):
        list(read_expenses(["date,category,amount\n", "2024-03-01,food,abc\n"]))


def test_largest_total_first():
    report = summarize(read_expenses(LINES))
    assert [(row.name, row.count, row.total) for row in report.rows] == [("rent", 1, 100), ("food", 2, 12)]


def test_text_table():
    assert render_text(summarize(read_expenses(LINES))) == (
        "Category  Count   Total\nrent          1  100.00\nfood          2   12.00\nTotal         3  112.00\n"
    )
