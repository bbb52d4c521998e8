"""`grid predict`: what the next run of a kind of task will need, from earlier runs."""

from __future__ import annotations

from typing import Any

import click

from gridhand.cli import render
from gridhand.cli.help_format import command, option


@command(
    epilog="""
    grid predict train.py
    grid predict --json train.py
    """
)
@option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("type", metavar="TYPE")
def predict(type: str, as_json: bool) -> None:
    """Predict what the next run of a task will need.

    It is estimated from your earlier runs of the same kind. TYPE is what was given with
    `grid run --type`, else the name of the program or script, such as train.py.
    """
    from gridhand.client import connect

    with connect() as client:
        predicted = client.predict(type)
    if as_json:
        render.print_json(predicted)
    else:
        click.echo("\n".join(prediction_lines(predicted)))


def prediction_lines(predicted: dict[str, Any]) -> list[str]:
    kind, runs = predicted["task_type"], predicted["runs"]
    lines = [f"{kind}: {runs} {'run' if runs == 1 else 'runs'} known"]
    memory = predicted["memory"]
    if memory is not None:
        lines.append(
            f"  memory    ask for {render.size(memory['bytes'])}: covers "
            f"{_percent(memory['within'])} of the last {memory['runs']} runs, the next one with a "
            f"probability of {_percent(memory['confidence'])}"
        )
        largest, median = render.size(memory["largest_bytes"]), render.size(memory["median_bytes"])
        lines.append(f"            largest {largest}, median {median}")
    lines += [f"  duration  {_duration_text(one)}" for one in predicted["durations"]]
    if memory is None and not predicted["durations"]:
        lines.append("  Nothing can be predicted before three runs have ended.")
    return lines


def _duration_text(one: dict[str, Any]) -> str:
    held = "" if one["held"] is None else f" (held for {_percent(one['held'])} so far)"
    return f"{_percent(one['quantile'])} end within {_time(one['seconds'])}{held}"


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else render.clock(seconds)


def _percent(part: float) -> str:
    """Return a part in percent, never rounded up to 100."""
    return "100 %" if part >= 1 else f"{min(99, round(100 * part))} %"
