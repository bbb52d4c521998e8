"""Checks before anything runs as root for all users of a machine."""

from __future__ import annotations

import os
from collections.abc import Iterable


def require_root(message: str, hint: str) -> None:
    """Raise `GridError` unless we are root."""
    from gridhand.core.errors import GridError

    if os.geteuid() != 0:
        raise GridError(message, hint=hint)


def require_root_only(paths: Iterable[str | None], hint: str) -> None:
    """Raise `GridError` if another user could change any of these paths; skip None."""
    from gridhand.core.errors import GridError
    from gridhand.posix.shared_parents import UnsafeFolder, check_root_only

    for path in filter(None, paths):
        try:
            check_root_only(path)
        except UnsafeFolder as error:
            raise GridError(f"root must not use {path}: {error}", hint=hint) from error
        except FileNotFoundError as error:
            raise GridError(f"{error.filename} does not exist", hint=hint) from error
