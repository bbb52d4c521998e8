"""What holds for every test."""

import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# What is collected stays: to look through it for garbage, again and again, takes a while.
gc.disable()

# Modules that the tests of several rooms share are imported by their names alone.
SUPPORT = Path(__file__).parent / "support"
sys.path.append(str(SUPPORT))
pytest.register_assert_rewrite(*(path.stem for path in SUPPORT.glob("*.py")))

# Behind `nohup` or `&` some signals are ignored, and so they would be here and in every child.
_USUAL = {
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,  # by default it would end pytest itself
    signal.SIGQUIT: signal.SIG_DFL,
}
for _signum, _handler in _USUAL.items():
    if signal.getsignal(_signum) is signal.SIG_IGN:
        signal.signal(_signum, _handler)


# Counting every line makes a test two or three times as long, in this process and in those that it
# starts. So these are not counted: what they run is run by the tests beside them, too.
_NOT_COUNTED = (
    "_machine.py", "test_ledger_model.py", "test_planted_faults.py", "test_plant.py", "_scale", "test_quality.py",
    "test_launcher.py", "test_docs.py", "test_job_faults.py", "test_rows.py", "end_to_end/test_gpus.py",
    "test_clock.py", "test_crash.py", "_crash.py", "test_every_write.py", "test_failing_commit.py",
    "test_controller_postgres.py", "test_within.py", "cli/test_real.py",
    "test_agent_faults.py", "test_starter_faults.py", "test_postgres_faults.py", "graphs/test_faults.py",
    "test_pool_stress.py", "test_graphs_on_nodes.py", "test_nested.py", "test_executor.py",
)  # fmt: skip


# What takes long comes first: else a process runs the last long file while the others are done.
_LONG_FIRST = (
    "test_job_faults.py", "test_rows.py", "cli/test_real.py", "test_launcher.py", "end_to_end/",
    "_machine.py", "test_planted_faults.py", "test_docs.py", "library/", "store/", "agent/", "api/",
    "cli/", "client/",
)  # fmt: skip


def _turn(item):
    found = (turn for turn, part in enumerate(_LONG_FIRST) if part in item.nodeid)
    return next(found, len(_LONG_FIRST))


def pytest_configure(config):
    from example_budget import examples
    from small_disk import remove_leftovers

    if not hasattr(config, "workerinput"):  # once for all processes of a run
        remove_leftovers()

    # No deadline: on a machine that others use, an example may take any time.
    settings.register_profile("gridhand", max_examples=examples(50), deadline=None, print_blob=True)
    settings.load_profile("gridhand")


@pytest.hookimpl(trylast=True)  # by then hypothesis has marked its own
def pytest_collection_modifyitems(items):
    items.sort(key=_turn)
    for item in items:
        slow = any(part in item.nodeid for part in _NOT_COUNTED)
        if slow or item.get_closest_marker("hypothesis") is not None:
            item.add_marker("no_cover")


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Count nothing in the processes of a test that is not counted, its fixtures included."""
    if item.get_closest_marker("no_cover") is None:
        return (yield)
    names = [name for name in os.environ if name.startswith("COVERAGE_")]
    kept = {name: os.environ.pop(name) for name in names}
    try:
        return (yield)
    finally:
        os.environ.update(kept)


@pytest.fixture(scope="session")
def postgres():
    """The PostgreSQL server that all tests of this process share."""
    from postgres_server import shared_server

    return shared_server()


@pytest.fixture
def database(postgres):
    """The address of a fresh, empty database."""
    url = postgres.new_database()
    yield url
    postgres.drop(url)


@pytest.fixture
def private():
    """A PostgreSQL server of the test's own, to be killed and started again."""
    from postgres_server import Server

    with Server() as server:
        yield server


def pytest_unconfigure():
    if "postgres_server" in sys.modules:
        sys.modules["postgres_server"].end_shared_server()
