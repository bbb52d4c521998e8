"""What holds for every test."""

import signal

# Behind `nohup` or `&` some signals are ignored, and so they would be here and in every child.
_USUAL = {
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,  # by default it would end pytest itself
    signal.SIGQUIT: signal.SIG_DFL,
}
for _signum, _handler in _USUAL.items():
    if signal.getsignal(_signum) is signal.SIG_IGN:
        signal.signal(_signum, _handler)
