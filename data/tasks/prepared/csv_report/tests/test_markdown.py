"""Markdown, from Python and from the command line."""

import subprocess
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from csvreport import Expense, summarize
from csvreport.cli import main

REPO = Path(__file__).resolve().parent.parent


@pytest.fixture
def expenses_csv(tmp_path):
    path = tmp_path / "expenses.csv"
    path.write_text("date,category,amount\n2024-03-01,rent,1200\n2024-03-04,food,23.4\n2024-04-18,food,11.7\n")
    return str(path)


def test_markdown_by_category():
    from csvreport.markdown import render_markdown

    expenses = [Expense(date(2024, 3, 1), "food", Decimal("1.005")), Expense(date(2024, 3, 1), "rent", Decimal(1200))]
    assert render_markdown(summarize(expenses)) == (
        "| Category | Count | Total |\n"
        "| --- | ---: | ---: |\n"
        "| rent | 1 | 1200.00 |\n"
        "| food | 1 | 1.01 |\n"
        "| **Total** | **2** | **1201.01** |\n"
    )


def test_markdown_escapes_names():
    from csvreport.markdown import render_markdown

    text = render_markdown(summarize([Expense(date(2024, 3, 1), "a|b\\c", Decimal(1))]))
    assert "| a\\|b\\\\c | 1 | 1.00 |\n" in text


def test_command_line_markdown_by_month(expenses_csv, capsys):
    assert main([expenses_csv, "--by", "month", "--format", "markdown"]) == 0
    assert capsys.readouterr().out == (
        "| Month | Count | Total |\n"
        "| --- | ---: | ---: |\n"
        "| 2024-03 | 2 | 1223.40 |\n"
        "| 2024-04 | 1 | 11.70 |\n"
        "| **Total** | **3** | **1235.10** |\n"
    )


def test_command_line_text_by_month(expenses_csv, capsys):
    assert main([expenses_csv, "--by", "month"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["Month    Count    Total", "2024-03      2  1223.40"]


def test_command_line_defaults(expenses_csv, capsys):
    assert main([expenses_csv]) == 0
    assert capsys.readouterr().out == (
        "Category  Count    Total\nrent          1  1200.00\nfood          2    35.10\nTotal         3  1235.10\n"
    )


def test_unknown_option_values(expenses_csv, capsys):
    for option in (["--by", "week"], ["--format", "html"]):
        with pytest.raises(SystemExit) as caught:
            main([expenses_csv, *option])
        assert caught.value.code == 2
        assert "invalid choice" in capsys.readouterr().err


def test_mistake_in_the_file(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("date,category,amount\n2024-03-01,rent,lots\n")
    ended = subprocess.run(
        [sys.executable, "-m", "csvreport", str(path)], cwd=REPO, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "csvreport: line 2: amount: not a number: 'lots'\n"
