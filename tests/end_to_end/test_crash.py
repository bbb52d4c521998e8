"""The state survives `kill -9` at any point (T11, I7; rows 1 to 4 of docs/reliability.md).

A real process works on a store with several threads, and says what it asks for and what it is
answered. It is killed, at a random moment or at a chosen point of a transaction. Then every answer
must still be true, nothing else may count, and each call that was under way, made again with the
same op id, must take effect once. The same store goes on to the next kill.
"""

import itertools
import time

import pytest

POINTS = ("before BEGIN", "after BEGIN", "between rows and events", "before COMMIT", "after COMMIT")


class Rounds:
    """One store, killed again and again."""

    def __init__(self, tools, nursery, path, seed):
        self.nursery, self.path = nursery, path
        self.books = tools.Books()
        self.random = tools.random(seed)
        self.aftermath = tools.Aftermath(path, self.books)
        self.seed = 0
        self.kills = 0

    def kill(self, point=None, nth=0, *, threads=3):
        """A worker that dies at a point of its own, or else when it pleases us."""
        self.seed += 1
        self.nursery.start(
            job="churn", path=str(self.path), seed=self.seed, threads=threads,
            calls=100_000 if point is None else 60, point=point, nth=nth,
        )  # fmt: skip
        lines = []
        if point is None:
            lines = self.nursery.until("ready", "ended")
            self.nursery.kill_after(lines[-1]["ready"], self.random.uniform(0.001, 0.12))
        lines += self.nursery.until("ended")
        assert lines[-1]["ended"] == -9, "it ended before it was killed"
        self.kills += 1
        self.books.read(lines)
        self.aftermath.verify()

    def worked(self):
        """Fails if the rounds showed nothing."""
        counts = self.books.counts
        assert counts["done"] > 3 * self.kills
        assert counts["in flight, written"] > 0
        assert counts["in flight, not written"] > 0


@pytest.fixture
def rounds(tools, nursery, tmp_path):
    path = tmp_path / "grid.db"
    tools.furnish(path)
    return lambda seed: Rounds(tools, nursery, path, seed)


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_point_of_a_transaction(rounds, point):
    killed = rounds(point)
    for nth in (2, 3, 5, 9, 14, 20):
        killed.kill(point, nth, threads=1 + nth % 3)
    assert killed.kills == 6
    assert killed.books.counts["done"] > 20


def test_killed_at_any_moment(rounds):
    killed = rounds("any moment")
    for _ in range(30):
        killed.kill()
    killed.worked()


@pytest.mark.parametrize("point", [point for point in POINTS if "rows" not in point])
def test_killed_while_a_store_is_made_or_opened(tools, nursery, tmp_path, point):
    path = tmp_path / "new" / "grid.db"
    for seed in range(2):  # the first time there is nothing yet
        nursery.start(
            job="churn", path=str(path), seed=seed, threads=1, calls=1, point=point, nth=1
        )
        assert nursery.until("ended")[-1]["ended"] == -9
    tools.check_file(path)
    tools.furnish(path)
    tools.Aftermath(path, tools.Books()).verify()


@pytest.mark.soak
def test_killed_five_hundred_times(rounds):
    killed = rounds("soak")
    began = time.monotonic()
    points = itertools.cycle([None, *POINTS, None])
    while killed.kills < 500:
        killed.kill(next(points), killed.random.randrange(1, 25) + 1, threads=3)
    took = time.monotonic() - began
    counts = dict(killed.books.counts)
    print(f"\n{killed.kills} kills in {took:.0f} s, {killed.kills / took:.1f}/s: {counts}")
    killed.worked()
