"""Exact amounts of named resources.

Ten jobs that each take 0.1 GPU and give it back must leave the node exactly as they found it, so
an amount is an integer count of parts: bytes for memory and disk, ten thousand to the unit for
everything else. Text and numbers become parts once, at the edge.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from numbers import Integral, Real
from typing import Any

from gridhand.core.errors import InvalidAmount, InvalidName, InvalidRequest

UNIT = 10_000
MOST = 2**53 - 1
MOST_NAMES = 64
BYTES = frozenset({"memory", "gpu_memory", "disk"})
NOTHING = "nothing"
KNOWN = ("cpu", "memory", "disk", "gpu", "gpu_memory", "bandwidth")

_MEGA = 10**6
_LEAST, _OVER = Decimal("1e-30"), Decimal(MOST + 1)
_EXACT = Context(prec=100)  # the caller's own decimal context may round or raise
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,62}")
_TEXT = re.compile(r"([0-9]{1,40}(?:\.[0-9]{1,40})?) ?([A-Za-z]{0,3})", re.ASCII)
_SIZES = {
    "b": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15,
    "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40, "pi": 2**50,
}  # fmt: skip
_SUFFIXES = _SIZES | {f"{suffix}b": size for suffix, size in _SIZES.items() if suffix != "b"}

# Names used by other systems: our name, and the parts that a bare number counts.
_ALIASES: dict[str, tuple[str, int]] = {
    "cpu_cores": ("cpu", UNIT),
    "gpu_count": ("gpu", UNIT),
    "memory_gb": ("memory", 10**9),
    "disk_gb": ("disk", 10**9),
    "storage": ("disk", _MEGA),
    "gpu_memory_gb": ("gpu_memory", 10**9),
    "network_bandwidth_mbps": ("bandwidth", UNIT),
    "num_cpus": ("cpu", UNIT),
    "num_gpus": ("gpu", UNIT),
}


_set = object.__setattr__


class Resources:
    """An immutable vector of amounts. A name that is absent counts as zero.

    >>> Resources.parse("cpu=4 gpu=0.5") - Resources.parse("cpu=1")
    Resources('cpu=3 gpu=0.5')
    """

    __slots__ = ("_hash", "_parts", "pairs")

    def __init__(self, parts: Mapping[str, int] | None = None) -> None:
        parts = parts or {}
        if any(amount < 0 for amount in parts.values()):
            raise ValueError(f"amounts cannot be negative: {dict(parts)}")
        kept = {name: parts[name] for name in sorted(parts) if parts[name]}
        _set(self, "_parts", kept)
        _set(self, "pairs", tuple(kept.items()))  # sorted names with positive parts
        _set(self, "_hash", hash(self.pairs))

    _parts: dict[str, int]
    pairs: tuple[tuple[str, int], ...]
    _hash: int

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} cannot be set: resources do not change")

    __delattr__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type[Resources], tuple[dict[str, int]]]:
        # Rebuilt on unpickling, because the hash of a string differs between processes.
        return Resources, (self._parts,)

    @classmethod
    def of(
        cls, given: Resources | Mapping[str, Any] | str | None = None, /, **named: Any
    ) -> Resources:
        """Read amounts as users write them: a mapping, keywords, text, or another `Resources`.

        >>> Resources.of(cpu=0.5, memory="4GB") == Resources.of({"cpu": 0.5, "memory": 4000})
        True
        """
        if isinstance(given, Resources) and not named:
            return given
        if isinstance(given, str):
            given = cls.parse(given)
        if isinstance(given, Resources):
            return cls(_joined(given._parts, read_amounts(named)))
        if given is not None and not isinstance(given, Mapping):
            raise InvalidRequest("resources", given, "a mapping of names to amounts")
        return cls(_joined(read_amounts(given or {}), read_amounts(named)))

    @classmethod
    def parse(cls, text: str) -> Resources:
        """Read what `str` writes: `cpu=2 memory=4GB`. Commas may separate the amounts, too."""
        pairs: dict[str, str] = {}
        if text == NOTHING:
            return cls()
        for word in text.replace(",", " ").split():
            name, equals, amount = word.partition("=")
            if not equals:
                raise InvalidRequest("resources", word, "NAME=AMOUNT, as in cpu=2 memory=4GB")
            if name in pairs:
                raise InvalidRequest("resources", name, "each resource once")
            pairs[name] = amount
        return cls(read_amounts(pairs))

    def __getitem__(self, name: str) -> int:
        """Return the amount in parts: bytes or ten-thousandths."""
        return self._parts.get(name, 0)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Resources) and self._parts == other._parts

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: Resources) -> Resources:
        return Resources({name: self[name] + other[name] for name in self._parts | other._parts})

    def __sub__(self, other: Resources) -> Resources:
        if not other.fits_in(self):
            raise ValueError(f"cannot take {other} from {self}: {other.shortfall(self)} missing")
        return Resources({name: self[name] - other[name] for name in self})

    def fits_in(self, free: Resources) -> bool:
        return all(amount <= free[name] for name, amount in self.pairs)

    def shortfall(self, free: Resources) -> Resources:
        """Return what `free` lacks to hold this; empty if it fits."""
        return Resources({name: max(0, self[name] - free[name]) for name in self})

    def without(self, *names: str) -> Resources:
        return Resources({name: self[name] for name in self if name not in names})

    def parts(self) -> dict[str, int]:
        """Return the amounts as a new dict of names to positive integer parts."""
        return dict(self._parts)

    def to_dict(self) -> dict[str, int | float | str]:
        """Return the amounts as users write them; `Resources.of` reads them back."""
        return {name: _plain(name, amount) for name, amount in self.pairs}

    def __str__(self) -> str:
        return " ".join(f"{name}={amount_text(name, self[name])}" for name in self) or NOTHING

    def __repr__(self) -> str:
        return f"Resources({'' if not self else repr(str(self))})"


def _joined(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    for name in first:
        if name in second:
            raise InvalidRequest("resources", name, "each resource once")
    return {**first, **second}


def read_amounts(given: Mapping[str, Any]) -> dict[str, int]:
    """Return the parts of each resource under our name. Unlike in `Resources`, zeros are kept."""
    if len(given) > MOST_NAMES:
        raise InvalidRequest("resources", f"{len(given)} names", f"at most {MOST_NAMES} of them")
    parts: dict[str, int] = {}
    for spelled, value in given.items():
        name, scale = _ALIASES.get(check_name(spelled), (spelled, 0))
        if name in parts:
            raise InvalidRequest("resources", name, f"each resource once ({spelled} is {name})")
        parts[name] = read_amount(name, value, scale=scale)
    return parts


def check_name(name: object) -> str:
    """Return the name of a resource, or raise InvalidName."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidName(
            "resource name", name, "a letter, then at most 62 letters, digits or any of _ . / -"
        )
    return name


def read_amount(name: str, value: object, *, scale: int = 0) -> int:
    """Return an amount in parts. A bare number counts `scale` parts: MB for bytes, else units.

    >>> read_amount("memory", "1.5GiB"), read_amount("cpu", 0.1), read_amount("cpu", "250m")
    (1610612736, 1000, 2500)
    """
    scale = scale or (_MEGA if name in BYTES else UNIT)
    if type(value) is int and 0 <= value * scale <= MOST:
        return value * scale
    with localcontext(_EXACT):
        return _rounded(name, value, _decimal(name, value, scale))


def _decimal(name: str, value: object, scale: int) -> Decimal:
    if not isinstance(value, str):
        number = _number(value)
        if number is None or not number.is_finite() or number < 0:
            raise InvalidAmount(name, value, _allowed(name))
        # Clamped to the bounds of the decimal context; `_rounded` refuses what is out of range.
        return max(number, _LEAST) * scale if 0 < number <= MOST else min(number, _OVER)
    match = _TEXT.fullmatch(value.strip(" ")) if len(value) <= 100 else None
    if match is None:
        raise InvalidAmount(name, value, _allowed(name))
    number, suffix = Decimal(match[1]), match[2]
    if not suffix:
        return number * scale
    if name not in BYTES and suffix == "m":
        return number * UNIT / 1000
    if name not in BYTES or suffix.lower() not in _SUFFIXES:
        raise InvalidAmount(name, value, _allowed(name))
    return number * _SUFFIXES[suffix.lower()]


def _number(value: object) -> Decimal | None:
    """Return any kind of number as a decimal; None for anything else, booleans included."""
    if isinstance(value, Decimal):
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    if isinstance(value, Integral):
        return Decimal(min(max(int(value), -1), MOST + 1))
    # By way of its shortest text, so that 0.1 is a tenth and not the nearest binary fraction.
    return Decimal(repr(float(value)))


def _rounded(name: str, value: object, exact: Decimal) -> int:
    if exact > MOST:
        most = "9PB" if name in BYTES else amount_text(name, MOST)
        raise InvalidAmount(name, value, f"at most {most}")
    parts = int(exact.to_integral_value(rounding=ROUND_HALF_EVEN))
    if parts == 0 and exact > 0:
        raise InvalidAmount(name, value, f"0, or at least {amount_text(name, 1)}")
    return parts


def _allowed(name: str) -> str:
    if name in BYTES:
        return 'a number of MB, or text with a unit such as "4GB", "512MB" or "1.5GiB"'
    return "a number that is not negative, such as 2 or 0.5"


def _plain(name: str, amount: int) -> int | float | str:
    if amount % UNIT == 0 and name not in BYTES:
        return amount // UNIT
    number = amount / UNIT
    exact = name not in BYTES and read_amount(name, number) == amount
    return number if exact else amount_text(name, amount)


def amount_text(name: str, amount: int) -> str:
    """Return the exact amount in the largest unit that is short; `read_amount` reads it back."""
    if name not in BYTES:
        return _divided(amount, UNIT)
    for suffix, size in _PRINTED:
        if amount >= size and amount * 1000 % size == 0:
            return f"{_divided(amount, size)}{suffix}"
    return f"{amount}B"


_PRINTED = (
    ("PB", 10**15), ("TB", 10**12), ("GB", 10**9), ("MB", 10**6),
    ("PiB", 2**50), ("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("kB", 10**3),
)  # fmt: skip


def _divided(amount: int, size: int) -> str:
    """Return the exact quotient without trailing zeros; `size` leaves at most four decimals."""
    whole, rest = divmod(amount, size)
    decimals = f"{rest * 10_000 // size:04}".rstrip("0")
    return f"{whole}.{decimals}" if decimals else f"{whole}"


def canonical_name(name: str) -> str:
    """Return our name of a resource that other systems spell differently."""
    return _ALIASES.get(name, (name, 0))[0]


def nearest_name(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known name that was probably meant, or None if none is close."""
    import difflib  # only errors need it

    close = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=cutoff)
    return close[0] if close else None
