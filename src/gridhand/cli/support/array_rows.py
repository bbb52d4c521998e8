"""One line in a list for the tasks of an array that are in the same state for the same reason."""

from __future__ import annotations

from gridhand.cli import render
from gridhand.cli.commands.jobs import Job, remark, row, title


def line_row(line: Job) -> tuple[object, ...]:
    """Return a row like that of `jobs.row` for a line of the controller."""
    tasks = line.get("tasks")
    if tasks is None or tasks["count"] == 1:
        return row(line)
    return (
        tasks["named"],
        title(line),
        line["owner"],
        line["state"],
        render.clock(tasks["longest_s"]),
        line_node(line),
        remark(line),
    )


def line_node(line: Job) -> str:
    """Return the node of the tasks, or how many there are."""
    nodes = line["tasks"]["nodes"]
    return f"{nodes} nodes" if nodes > 1 else str(line["node"] or "-")
