"""The words that a shell completes: files, jobs, nodes, states and owners.

The controller is asked only if it runs and answers at once; a shell waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from gridhand.client import Client

_TIMEOUT_S = 1.0
_MOST = 200

Complete = Callable[[click.Context, click.Parameter, str], list["CompletionItem"]]


def complete_files(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Let the shell complete the name of a file."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def complete_strategies(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of a built-in strategy."""
    from click.shell_completion import CompletionItem

    from gridhand.core.placement.strategies import STRATEGIES

    return [
        CompletionItem(name, help=strategy.help.partition("\n")[0])
        for name, strategy in STRATEGIES.items()
        if name.startswith(incomplete)
    ]


def _from_controller(words: Callable[[Client], Iterable[tuple[str, str]]]) -> Complete:
    """Return a completion by what the controller has: words, and a help text for each."""

    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [
            CompletionItem(word, help=text)
            for word, text in _ask(words)
            if word.startswith(incomplete)
        ]

    return complete


def _ask(words: Callable[[Client], Iterable[tuple[str, str]]]) -> list[tuple[str, str]]:
    from gridhand.client.client import Client
    from gridhand.client.controller_finder import usual_address
    from gridhand.core.errors import GridError

    try:
        with Client(usual_address(), timeout_s=_TIMEOUT_S) as client:
            return list(dict(words(client)).items())
    except (OSError, GridError, ValueError, KeyError):
        return []


def _jobs(client: Client) -> Iterable[tuple[str, str]]:
    for line in client.job_lines(limit=_MOST):
        yield line["array"] or line["id"], f"{line['state']} {_title(line)}".strip()


def _title(job: dict[str, Any]) -> str:
    return str(job["name"] or (job["command"] or [""])[0])


def _nodes(client: Client) -> Iterable[tuple[str, str]]:
    return ((node["name"], node["health"]) for node in client.nodes())


def _owners(client: Client) -> Iterable[tuple[str, str]]:
    return ((job["owner"], "") for job in client.job_lines(limit=_MOST))


complete_jobs = _from_controller(_jobs)
complete_nodes = _from_controller(_nodes)
complete_owners = _from_controller(_owners)
