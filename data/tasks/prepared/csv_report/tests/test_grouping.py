"""Reports by category and by month."""

from datetime import date
from decimal import Decimal

import pytest

from csvreport import Expense, ReportError, summarize
from csvreport.text import render_text

EXPENSES = [
    Expense(date(2024, 10, 1), "rent", Decimal(900)),
    Expense(date(2024, 9, 30), "food", Decimal(20)),
    Expense(date(2023, 12, 31), "travel", Decimal(20)),
    Expense(date(2024, 9, 1), "rent", Decimal(900)),
]


def test_category_is_the_default():
    assert summarize(EXPENSES).rows == summarize(EXPENSES, by="category").rows
    assert summarize(EXPENSES).by == "category"


def test_categories_by_total_then_name():
    assert [row.name for row in summarize(EXPENSES).rows] == ["rent", "food", "travel"]


def test_months_in_order_of_time():
    report = summarize(EXPENSES, by="month")
    assert report.by == "month"
    assert [(row.name, row.count, row.total) for row in report.rows] == [
        ("2023-12", 1, 20),
        ("2024-09", 2, 920),
        ("2024-10", 1, 900),
    ]


def test_unknown_grouping():
    with pytest.raises(ReportError, match="week"):
        summarize(EXPENSES, by="week")


def test_text_table_by_month():
    assert render_text(summarize(EXPENSES, by="month")) == (
        "Month    Count    Total\n"
        "2023-12      1    20.00\n"
        "2024-09      2   920.00\n"
        "2024-10      1   900.00\n"
        "Total        4  1840.00\n"
    )


def test_text_table_by_category_is_unchanged():
    assert render_text(summarize(EXPENSES)) == (
        "Category  Count    Total\n"
        "rent          2  1800.00\n"
        "food          1    20.00\n"
        "travel        1    20.00\n"
        "Total         4  1840.00\n"
    )
