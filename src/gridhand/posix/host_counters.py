"""Counters of the whole machine in /proc: load, network and disks.

Only real network cards and disks count, so that traffic over a bridge or a mapped disk is not
counted twice. A container has no real ones; there everything but the loopback counts.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from gridhand.posix.procfs import StrPath

_SECTOR_BYTES = 512  # in /proc/diskstats, whatever the disk has


class Traffic(NamedTuple):
    """Bytes that have come in and gone out since boot."""

    received: int
    sent: int


def load_averages(root: StrPath = "/") -> tuple[float, float, float]:
    """Return the average number of processes that run or wait, over 1, 5 and 15 minutes."""
    one, five, fifteen = _text(f"{root}/proc/loadavg").split()[:3]
    return float(one), float(five), float(fifteen)


def network_bytes(root: StrPath = "/") -> Traffic:
    """Return what all network cards have received and sent."""
    cards = {}
    for line in _text(f"{root}/proc/net/dev").splitlines()[2:]:
        name, _, numbers = line.partition(":")
        fields = numbers.split()
        cards[name.strip()] = Traffic(int(fields[0]), int(fields[8]))
    cards.pop("lo", None)
    return _added(cards, f"{root}/sys/class/net")


def disk_bytes(root: StrPath = "/") -> Traffic:
    """Return what was read from all disks and written to them."""
    disks = {}
    for line in _text(f"{root}/proc/diskstats").splitlines():
        fields = line.split()
        read, written = int(fields[5]), int(fields[9])
        disks[fields[2]] = Traffic(read * _SECTOR_BYTES, written * _SECTOR_BYTES)
    real = {
        name: traffic for name, traffic in disks.items() if _is_whole(name, f"{root}/sys/block")
    }
    return _added(real, f"{root}/sys/block")


def _is_whole(name: str, folder: str) -> bool:
    """Return whether it is a disk and no partition, whose traffic is that of its disk too."""
    return os.path.exists(f"{folder}/{name}")


def _added(counted: dict[str, Traffic], folder: str) -> Traffic:
    real = [
        traffic for name, traffic in counted.items() if os.path.exists(f"{folder}/{name}/device")
    ]
    chosen = real or list(counted.values())
    return Traffic(sum(one.received for one in chosen), sum(one.sent for one in chosen))


def _text(path: str) -> str:
    with open(path) as file:
        return file.read()
