"""A report as an aligned text table."""

from csvreport.summary import Report


def render_text(report: Report) -> str:
    table = [("Category", "Count", "Total")]
    table += [(row.name, str(row.count), f"{row.total:.2f}") for row in report.rows]
    table.append(("Total", str(report.count), f"{report.total:.2f}"))
    name_width, count_width, total_width = (max(map(len, column)) for column in zip(*table, strict=True))
    lines = [
        f"{name:<{name_width}}  {count:>{count_width}}  {total:>{total_width}}".rstrip() for name, count, total in table
    ]
    return "\n".join(lines) + "\n"
