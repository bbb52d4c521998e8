"""A real SQLite store whose commits fail as a test tells them to."""

from gridhand.core.errors import OutcomeUnknown
from gridhand.store.sql.sqlite import SqliteStore


class FailingStore:
    """The real store, some of whose next commits fail.

    A fault is an error that is raised instead of writing; a pair of it and True is raised after.
    """

    def __init__(self, path, *, tells=False):
        self._store = SqliteStore(path)
        self._tells = tells  # after a fault, whether the batch was written
        self.faults = []
        self.down = None  # an error that every commit meets
        self.refused = 0
        self._written = False

    def __getattr__(self, name):
        return getattr(self._store, name)

    def commit(self, batch):
        fault = self.faults.pop(0) if self.faults else self.down
        error, written = fault if isinstance(fault, tuple) else (fault, False)
        if error is None or written:
            self._store.commit(batch)
        if error is not None:
            self.refused += 1
            self._written = written
            raise error

    def recover(self):
        """Return whether the batch was written; one that cannot tell raises OutcomeUnknown."""
        self._store.recover()
        written, self._written = self._written, False
        if written and not self._tells:
            raise OutcomeUnknown("not yet")
        return written
