"""Find the token of this user for a controller on the network.

A token in an argument could be read by all users of the machine, so there is no option for it.
"""

from __future__ import annotations

import os
import stat

from gridhand.client.errors import make_error

_MOST_BYTES = 4096


def find_token() -> str | None:
    """Return $GRIDHAND_TOKEN, else what the file in $GRIDHAND_TOKEN_FILE has; None without both.

    Raise GridError, which never shows the token, if others can read the file.
    """
    if token := os.environ.get("GRIDHAND_TOKEN"):
        return _checked(token, "$GRIDHAND_TOKEN")
    path = os.environ.get("GRIDHAND_TOKEN_FILE")
    return _checked(_read_private(path), path) if path else None


def read_token_file(path: str) -> str:
    """Return the token in a file; raise GridError if others can read it."""
    return _checked(_read_private(path), path)


def _read_private(path: str) -> str:
    try:
        with open(os.path.expanduser(path), encoding="utf-8", errors="replace") as file:
            facts = os.fstat(file.fileno())
            if facts.st_uid not in (0, os.geteuid()) or stat.S_IMODE(facts.st_mode) & 0o077:
                message = f"the token file {path} can be read by other users"
                hint = f"Close it with `chmod 600 {path}`, and rotate the token."
                raise make_error("invalid_input", message, hint)
            return file.read(_MOST_BYTES)
    except OSError as error:
        message = f"the token file {path} cannot be read: {error.strerror}"
        hint = "$GRIDHAND_TOKEN_FILE names a file that `grid token create -o FILE` has written."
        raise make_error("invalid_input", message, hint) from error


def _checked(text: str, where: str) -> str:
    """Return the token without spaces around it; it must not break out of a header."""
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise make_error("invalid_input", f"{where} has no token", "A token is one word.")
    return token
