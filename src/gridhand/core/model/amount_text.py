"""Amounts for people to read: short, and still what `Resources.parse` reads.

A machine has bytes to the last one, and nobody types those. What there is is rounded down, so that
whoever asks for what was read gets it; what is asked for is rounded up, so as not to belittle it.
"""

from __future__ import annotations

from gridhand.core.resources import BYTES, MOST, NOTHING, Resources, amount_text

_LONGEST = 8  # characters; what is as short as that is left exact
_UNITS = (10**15, 10**12, 10**9, 10**6, 10**3)


def at_most(name: str, amount: int) -> str:
    """So much as there is, or a little less.

    >>> at_most("memory", 25_274_793_984), at_most("memory", 16 * 2**30), at_most("cpu", 5000)
    ('25.27GB', '16GiB', '0.5')
    """
    return amount_text(name, _rounded(name, amount, up=False))


def at_least(name: str, amount: int) -> str:
    """So much as is asked for, or a little more.

    >>> at_least("memory", 25_274_793_984)
    '25.28GB'
    """
    return amount_text(name, _rounded(name, amount, up=True))


def there_text(resources: Resources) -> str:
    """What there is, in one line: `cpu=2 memory=25.27GB`."""
    return " ".join(f"{name}={at_most(name, part)}" for name, part in resources.pairs) or NOTHING


def asked_text(resources: Resources) -> str:
    """What is asked for, in one line: `cpu=2 memory=4GB`."""
    return " ".join(f"{name}={at_least(name, part)}" for name, part in resources.pairs) or NOTHING


def _rounded(name: str, amount: int, *, up: bool) -> int:
    """To two decimals of the largest unit, where the exact amount is too long to read."""
    if name not in BYTES or len(amount_text(name, amount)) <= _LONGEST:
        return amount
    step = next(unit for unit in _UNITS if unit <= amount) // 100
    rounded = -(-amount // step) * step if up else amount // step * step
    return rounded if rounded <= MOST else amount
