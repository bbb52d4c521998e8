"""Wait for a condition: what every test does instead of sleeping."""

import time

PATIENCE_S = 60.0  # for slow machines only; a test that passes never waits for so long


def until(condition, seconds=PATIENCE_S, pause=0.01):
    """Return what `condition()` returns once it is true; fail if that takes too long."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(pause)
    return found
