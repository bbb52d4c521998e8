"""What holds for every test."""

import signal

import pytest

# Behind `nohup` or `&` some signals are ignored, and so they would be here and in every child.
_USUAL = {
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,  # by default it would end pytest itself
    signal.SIGQUIT: signal.SIG_DFL,
}
for _signum, _handler in _USUAL.items():
    if signal.getsignal(_signum) is signal.SIG_IGN:
        signal.signal(_signum, _handler)


# Thousands of cases take three times as long when every line is counted, and what they run is run
# by the tests beside them, too.
_MANY_CASES = ("tests/simulation/", "test_controller_machine.py", "test_scale", "test_quality.py")


# What takes long comes first: else a process runs the last long file while the others are done.
_LONG_FIRST = ("tests/end_to_end/", "tests/test_launcher.py", "tests/simulation/",
               "tests/functions/", "tests/postgres/", "tests/store/", "tests/library/")  # fmt: skip


def _turn(item):
    found = (turn for turn, part in enumerate(_LONG_FIRST) if item.nodeid.startswith(part))
    return next(found, len(_LONG_FIRST))


@pytest.hookimpl(trylast=True)  # by then hypothesis has marked its own
def pytest_collection_modifyitems(items):
    items.sort(key=_turn)
    for item in items:
        many = any(part in item.nodeid for part in _MANY_CASES)
        if many or item.get_closest_marker("hypothesis") is not None:
            item.add_marker("no_cover")
