"""Short, rounded text for amounts, which `Resources.parse` can read back.

A capacity is rounded down, so that a request copied from the text fits. A requested amount is
rounded up, so that it is never understated.
"""

from __future__ import annotations

from gridhand.core.model.resources import BYTES, MOST, NOTHING, Resources, amount_text

_LONGEST = 8  # characters; exact text that is no longer than this is not rounded
_UNITS = (10**15, 10**12, 10**9, 10**6, 10**3)


def at_most(name: str, amount: int) -> str:
    """Return the amount as text, rounded down.

    >>> at_most("memory", 25_274_793_984), at_most("memory", 16 * 2**30), at_most("cpu", 5000)
    ('25.27GB', '16GiB', '0.5')
    """
    return amount_text(name, _rounded(name, amount, up=False))


def at_least(name: str, amount: int) -> str:
    """Return the amount as text, rounded up.

    >>> at_least("memory", 25_274_793_984)
    '25.28GB'
    """
    return amount_text(name, _rounded(name, amount, up=True))


def capacity_text(resources: Resources) -> str:
    """Return resources that exist as one line, rounded down: `cpu=2 memory=25.27GB`."""
    return " ".join(f"{name}={at_most(name, part)}" for name, part in resources.pairs) or NOTHING


def request_text(resources: Resources) -> str:
    """Return requested resources as one line, rounded up: `cpu=2 memory=4GB`."""
    return " ".join(f"{name}={at_least(name, part)}" for name, part in resources.pairs) or NOTHING


def _rounded(name: str, amount: int, *, up: bool) -> int:
    """Round to two decimals of the largest unit if the exact text is too long to read."""
    if name not in BYTES or len(amount_text(name, amount)) <= _LONGEST:
        return amount
    step = next(unit for unit in _UNITS if unit <= amount) // 100
    rounded = -(-amount // step) * step if up else amount // step * step
    return rounded if rounded <= MOST else amount
