"""Makes a store from its address."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from gridhand.core.errors import InvalidInput
from gridhand.store.base import Store
from gridhand.store.ownership import Taking

_PASSWORD = re.compile(r"(?P<before>//[^/@:?]*:).*(?=@)|(?P<key>password=)[^&]*")
_ALLOWED = "a path, sqlite:///path/to/file.db or postgresql://user@host/database"


def hide_password(url: str) -> str:
    """Return the address of a store as it may be shown."""
    return _PASSWORD.sub(lambda found: f"{found['before'] or found['key']}***", url)


def memory_store() -> Store:
    """Return a store in memory, which lasts as long as it is open."""
    from gridhand.store.sql.sqlite import SqliteStore

    return SqliteStore(None)


def store_at(url: str, taking: Taking | None = None) -> Store:
    """Return the store that `url` names: a path, `sqlite:///relative.db` or `postgresql://…`."""
    from gridhand.store.sql.sqlite import DEFAULT_TIMEOUT_S, SqliteStore

    text = str(url) if isinstance(url, str | Path) else ""
    if not text or not text.isprintable():
        raise InvalidInput("store", url, _ALLOWED)
    if "://" not in text:
        return SqliteStore(_absolute(text), taking=taking)
    try:
        parts = urlsplit(text)
    except ValueError:
        raise InvalidInput("store", hide_password(text), _ALLOWED) from None
    if parts.scheme in ("postgresql", "postgres"):
        return _postgres(text, taking)
    path = parts.path[1:]
    if parts.scheme != "sqlite" or parts.netloc or not path or path == ":memory:":
        raise InvalidInput("store", hide_password(text), _ALLOWED)
    options = dict(parse_qsl(parts.query))
    timeout = options.pop("timeout", None)
    if options:
        raise InvalidInput("store", text, "no option but timeout (in seconds)")
    return SqliteStore(
        _absolute(path),
        timeout_s=DEFAULT_TIMEOUT_S if timeout is None else _seconds(timeout),
        taking=taking,
    )


def _postgres(url: str, taking: Taking | None) -> Store:
    from gridhand.store.sql.postgres import PostgresStore

    return PostgresStore(url.replace("postgres://", "postgresql://", 1), taking=taking)


def _absolute(path: str) -> str:
    try:
        return str(Path(path).expanduser().absolute())
    except RuntimeError:  # ~user, and there is no such user
        raise InvalidInput("store", path, _ALLOWED) from None


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 3600:
        raise InvalidInput("timeout", text, "seconds from 0 to 3600")
    return value
