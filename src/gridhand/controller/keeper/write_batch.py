"""Write a batch to the store, and find out the outcome if the connection is lost meanwhile."""

from __future__ import annotations

import time

from gridhand.core.errors import OutcomeUnknown, StoreUnavailable
from gridhand.store.base import Batch, Store

_PAUSE_S = 0.1
_RECOVERY_S = 3.0  # a database that restarts is back by then


def write_batch(store: Store, batch: Batch) -> None:
    """Commit the batch. If the outcome is unknown, find it out before anybody is answered."""
    try:
        store.commit(batch)
    except OutcomeUnknown as lost:
        if not _recovered(store, lost):
            raise StoreUnavailable(str(lost.__cause__ or lost)) from lost
        if store.lost_file():
            raise  # it was written to a file that nobody will find


def _recovered(store: Store, lost: OutcomeUnknown) -> bool:
    """Return whether the batch is in the store; raise `lost` if that cannot be found out."""
    give_up = time.monotonic() + _RECOVERY_S
    while True:
        try:
            return store.recover()
        except StoreUnavailable:
            if time.monotonic() > give_up:
                raise lost from None
            time.sleep(_PAUSE_S)
