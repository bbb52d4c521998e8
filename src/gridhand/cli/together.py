"""Being there for many jobs at once: a session that they end with."""

from __future__ import annotations

import time
from _thread import start_new_thread
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from gridhand.client import Client, Session

_PAUSE_S = 0.2


class Together:
    """A session to which jobs are attached; it goes on with the next controller, if need be."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._session: Session = client.session()
        self._jobs: list[str] = []
        self._over = False

    def attach(self, jobs: list[dict[str, Any]]) -> None:
        """Have these end when this process does, however it does."""
        self._jobs = [job["id"] for job in jobs]
        self._client.attach(self._session.id, self._jobs)
        start_new_thread(self._stay, ())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End it in good order; if something is wrong, it ends when this process does."""
        self._over = True
        if kind is None:
            self._client.end_session(self._session.id)

    def _stay(self) -> None:
        """Come back when the connection is lost: until then the jobs are given a while."""
        while True:
            self._session.wait()
            self._session.close()
            if self._over:
                return
            self._come_back()

    def _come_back(self) -> None:
        from gridhand.core.errors import GridError

        while not self._over:
            try:
                again = {"session": self._session.id, "jobs": self._jobs}
                self._session = self._client.session(again)
                return
            except GridError:
                time.sleep(_PAUSE_S)
