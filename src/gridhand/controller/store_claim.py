"""The claim of a controller to a store: the nodes of this machine must belong to it."""

from __future__ import annotations

from dataclasses import dataclass

from gridhand.core.errors import StoreInvalid
from gridhand.engines.base import Seen
from gridhand.store.home_store import HomeStore
from gridhand.store.ownership import StoreState

_HINT = (
    "Put the right store back. Or start with `grid serve --new-cluster`: jobs that run here and are"
    " not in the store are then stopped."
)


@dataclass(frozen=True, slots=True)
class StoreClaim:
    """Decides whether a controller may have a store, from what the nodes remember.

    It decides before anything is written, so a start that is refused is refused again, however
    often it is repeated.
    """

    url: str
    seen: Seen
    belongs_to: HomeStore | None = None  # the store of the home, if it has one
    new_cluster: bool = False  # whether the store is used even if the nodes belong to another

    def next_epoch(self, found: StoreState) -> int:
        """Return the epoch to begin; raise StoreInvalid if the nodes belong to another store."""
        if not self.new_cluster:
            self._check_ledger(found)
            self._check_running(found)
            self._check_epoch(found)
        return max(found.epoch, self.seen.epoch) + 1

    def _check_ledger(self, found: StoreState) -> None:
        """Refuse another ledger than the one of the home, wherever that is now."""
        home = self.belongs_to
        if home is None or home.cluster_id in (None, found.cluster_id):
            return
        if home.url == self.url:
            raise StoreInvalid(
                f"{self.url} holds another ledger than before: {found.cluster_id}, not"
                f" {home.cluster_id}",
                hint=_HINT,
            )
        raise StoreInvalid(
            f"this home belongs to the store {home.url}, and {self.url} is another one",
            hint="Start without --store, move the state with `grid migrate-store`, or set"
            " GRIDHAND_HOME to another folder. `grid serve --new-cluster --store URL` leaves the"
            " old store: jobs that run here and are not in the new one are then stopped.",
        )

    def _check_running(self, found: StoreState) -> None:
        """Refuse a store that has never had the jobs that run."""
        numbers = {job: int(job.partition("_")[0]) for job, _ in self.seen.running}
        unknown = [job for job, number in numbers.items() if number >= found.next_job]
        if unknown:
            raise StoreInvalid(
                f"{len(unknown)} jobs run here of which the store knows nothing ({unknown[0]}, …):"
                f" {self.url} is new, or older than they are",
                hint=_HINT,
            )

    def _check_epoch(self, found: StoreState) -> None:
        """Refuse a store that is older than the nodes, which hear of an epoch after the store."""
        if found.epoch < self.seen.epoch:
            raise StoreInvalid(
                f"{self.url} is older than what ran here, or another store: its epoch is"
                f" {found.epoch}, and {self.seen.epoch} was seen",
                hint=_HINT,
            )
