"""Files of a job on another machine: sent before it starts, fetched after it has ended."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from gridhand.cli.support.attach import say

if TYPE_CHECKING:
    from gridhand.client import Client

_PART = 4 << 20
_OPTIONS = {"stdin": "-i", "stdout": "-o", "stderr": "-e"}
_HINT = (
    "The job runs on another machine, in a folder of its own. Send files with --send FILE, fetch"
    " them with --fetch FILE; output appears here."
)


def adapt_order(client: Client, order: dict[str, Any], given: dict[str, Any]) -> None:
    """Have a submission name nothing of this machine, and send the files that it needs."""
    for field, name in _OPTIONS.items():
        if given[field] not in (None, "none"):
            raise click.UsageError(f"{name} names a file of this machine. {_HINT}")
    del order["folder"]
    order["environment"] = dict(given["variables"])
    if not given["dry_run"] and given["send"]:
        order["upload"] = os.urandom(16).hex()
        for path, name in _files(given["send"]):
            _send(client, order["upload"], path, name)


def refuse_files(given: dict[str, Any]) -> None:
    """Raise UsageError for files to send or fetch: the job runs on this machine."""
    for name in ("send", "fetch"):
        if given[name]:
            what = "is for a controller on another machine; this job runs in this folder"
            raise click.UsageError(f"--{name} {what}, and needs no copies.")


def _files(given: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the files to send, and their names there: a path outside of this folder is cut off."""
    for path in given:
        relative = os.path.relpath(path)
        name = os.path.basename(relative) if relative.startswith("..") else relative
        if not os.path.isdir(path):
            yield path, name
            continue
        for folder, _, names in os.walk(path):
            for one in sorted(names):
                file = os.path.join(folder, one)
                yield file, os.path.normpath(os.path.join(name, os.path.relpath(file, path)))


def _send(client: Client, upload: str, path: str, name: str) -> None:
    try:
        with open(path, "rb") as file:
            runs, offset = os.access(path, os.X_OK), 0
            while (data := file.read(_PART)) or not offset:  # an empty file is sent, too
                client.upload(upload, name, offset, data, executable=runs)
                offset += len(data) or 1
    except OSError as error:
        raise click.ClickException(f"cannot send {path}: {error.strerror}") from None


def fetch_files(client: Client, job: str, patterns: Sequence[str]) -> list[str]:
    """Fetch files from the folder of a job into this one; return their names.

    Raise ClickException if there is none for one of the patterns.
    """
    there = [str(file["name"]) for file in client.files(job)]
    fetched: list[str] = []
    for pattern in patterns:
        wanted = os.path.normpath(pattern)
        names = [name for name in there if fnmatchcase(name, wanted) or _is_in(name, wanted)]
        if not names:
            raise click.ClickException(f"job {job} has left no file {pattern}")
        fetched += [name for name in names if name not in fetched]
    for name in fetched:
        _fetch(client, job, name)
    return fetched


def _is_in(name: str, folder: str) -> bool:
    return folder == "." or name.startswith(f"{folder}/")


def _fetch(client: Client, job: str, name: str) -> None:
    """Write a file below this folder, whatever the other machine calls it."""
    if os.path.isabs(name) or ".." in name.split("/"):
        say(f"job {job}: left out {name!r}, which would not be in this folder")
        return
    if folder := os.path.dirname(name):
        os.makedirs(folder, exist_ok=True)
    with open(name, "wb") as file:
        offset, size = 0, 1
        while offset < size:
            data, size = client.download(job, name, offset)
            if not data:
                break
            file.write(data)
            offset += len(data)
