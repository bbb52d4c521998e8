"""For all tests: what they start must not depend on how they themselves were started."""

import signal

_DEFAULTS = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGQUIT: signal.SIG_DFL,
}


def pytest_configure():
    """Behind `nohup` or `&` some signals are ignored, and so they would be in every child."""
    for signum, handler in _DEFAULTS.items():
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, handler)
