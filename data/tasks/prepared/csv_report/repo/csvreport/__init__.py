"""Sums up a CSV file of expenses."""

from csvreport.reader import Expense, ReportError, read_expenses
from csvreport.summary import Report, Row, summarize

__all__ = ["Expense", "Report", "ReportError", "Row", "read_expenses", "summarize"]
