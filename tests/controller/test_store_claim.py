"""Which store a controller may have, from its home and its nodes."""

import pytest

from gridhand.controller.store_claim import StoreClaim
from gridhand.core.errors import StoreInvalid
from gridhand.core.model.names import JobId
from gridhand.engines.base import Seen
from gridhand.store.home_store import HomeStore
from gridhand.store.ownership import StoreState

FOUND = StoreState("c1", epoch=5, next_job=10)
URL = "sqlite:////s.db"


def runs(*jobs, epoch=5):
    return Seen(epoch, [(JobId(job), 1) for job in jobs])


#    what it shows                                    seen                home's store        refused with
CLAIMS = {
    "new nodes and a new home take any store":        (runs(epoch=-1),    None,               ""),
    "nodes that have seen its epoch are its own":     (runs("9", "9_3"),  ("/s.db", "c1"),    ""),
    "the ledger of the home may be elsewhere now":    (runs(),            ("/old.db", "c1"),  ""),
    "a home whose ledger is unknown takes any":       (runs(),            ("/s.db", None),    ""),
    "nodes that have seen a later epoch":             (runs(epoch=6),     ("/s.db", "c1"),    "older"),
    "jobs that it has never had":                     (runs("9", "10_2"), ("/s.db", "c1"),    "1 jobs run here"),
    "the store of another ledger":                    (runs(),            ("/old.db", "c2"),  "this home belongs to the store sqlite:////old.db"),
    "another ledger in the same store":               (runs(),            ("/s.db", "c2"),    "another ledger than before"),
}  # fmt: skip


@pytest.mark.parametrize(("seen", "home", "refused"), CLAIMS.values(), ids=CLAIMS)
def test_a_store_is_claimed_or_refused(seen, home, refused):
    belongs_to = home and HomeStore(*home)
    if refused:
        with pytest.raises(StoreInvalid, match=refused) as caught:
            StoreClaim(URL, seen, belongs_to).next_epoch(FOUND)
        assert "--new-cluster" in caught.value.hint
    else:
        assert StoreClaim(URL, seen, belongs_to).next_epoch(FOUND) == 6
    forced = StoreClaim(URL, seen, belongs_to, new_cluster=True)
    assert forced.next_epoch(FOUND) == max(5, seen.epoch) + 1
