"""The open jobs that a command is meant for, if they are described instead of named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from gridhand.client import Client

Job = dict[str, Any]

_PAGE = 10_000
_OPEN = ("queued", "running")


class JobChoice(NamedTuple):
    """Open jobs by name, state and owner; `everything` if nothing else narrows the choice."""

    everything: bool = False
    names: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    user: str | None = None

    def __bool__(self) -> bool:
        return self.everything or bool(self.names or self.states or self.user)

    def check(self, ids: tuple[str, ...]) -> None:
        """Raise UsageError unless jobs are either named or described."""
        if bool(ids) == bool(self):
            what = "not both" if ids else "such as 17, or --all"
            raise click.UsageError(f"give ids, or --name, --state, --user or --all; {what}")

    def ids(self, client: Client) -> list[str]:
        """Return the ids to act on; an array stands for its tasks unless states are chosen."""
        chosen = filter(self._fits, self._open(client))
        ids = (job["id"] if self.states or not job["array"] else job["array"] for job in chosen)
        return list(dict.fromkeys(ids))[::-1]

    def _open(self, client: Client) -> Iterator[Job]:
        """Yield open jobs, the newest first."""
        owner = self.user or client.version()["owner"]
        before: str | None = None
        while page := client.jobs(
            states=self.states or _OPEN, owner=owner, limit=_PAGE, before=before
        ):
            yield from page
            if len(page) < _PAGE:
                return
            before = page[-1]["id"]

    def _fits(self, job: Job) -> bool:
        return not self.names or _matches(job["name"] or "", self.names)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
