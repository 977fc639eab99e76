"""The command line."""

import argparse
import sys
from collections.abc import Sequence

from csvreport.reader import ReportError, read_expenses
from csvreport.summary import summarize
from csvreport.text import render_text


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="csvreport", description="Sum up a CSV file of expenses.")
    parser.add_argument("file", help="CSV file with the columns date, category and amount")
    args = parser.parse_args(argv)
    try:
        with open(args.file, encoding="utf-8", newline="") as lines:
            report = summarize(read_expenses(lines))
    except (OSError, ReportError) as error:
        print(f"csvreport: {error}", file=sys.stderr)
        return 1
    sys.stdout.write(render_text(report))
    return 0
