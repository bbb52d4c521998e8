"""The folder and the environment of a job: the caller's own on the unix socket, else made by us.

A client on another machine knows nothing of our folders, and must not: a path that it could name
might be one that only the controller may read or write.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import NamedTuple

from fastapi import Request

from gridhand.api.auth import owner_of, token_of
from gridhand.api.schemas.jobs import Submission
from gridhand.controller.jobs.job_folders import JobFolders
from gridhand.core.errors import InvalidInput

_PATH = "/usr/local/bin:/usr/bin:/bin"
_PATHS = ("folder", "stdin", "stdout", "stderr")


class JobPlace(NamedTuple):
    """Where a job runs, and with which variables."""

    folder: str
    environment: Mapping[str, str]


def check_place(body: Submission, request: Request) -> None:
    """Raise InvalidInput for paths that the caller may not name, or must."""
    if token_of(request) is not None:
        for name in _PATHS:
            if (path := getattr(body, name)) is not None:
                raise InvalidInput(
                    name, path, "no paths over the network: the job runs in a folder of its own"
                )
    elif body.folder is None and body.upload is None:
        raise InvalidInput("folder", None, "a path that begins with /")
    elif body.folder is not None and body.upload is not None:
        raise InvalidInput("folder", body.folder, "folder or upload, not both")


async def make_place(
    body: Submission, request: Request, op_id: str | None, folders: JobFolders
) -> JobPlace:
    """Return where the job runs; make the folder of a client on another machine."""
    if body.folder is not None:
        return JobPlace(body.folder, body.environment)
    owner = owner_of(request)
    folder = await folders.make(owner, body.upload or _folder_id(owner, op_id))
    return JobPlace(folder, {"PATH": _PATH, "HOME": folder, **body.environment})


def _folder_id(owner: str, op_id: str | None) -> str:
    """Return an id for a new folder: the same one if the submission is repeated."""
    if op_id is None:
        return os.urandom(16).hex()
    return hashlib.sha256(f"{owner} {op_id}".encode()).hexdigest()[:32]
