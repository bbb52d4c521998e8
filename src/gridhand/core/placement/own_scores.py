"""The scores of a user's strategy: called safely, and checked before they are used.

A strategy runs in the thread of the keeper, which serves everybody. Whatever it raises or returns,
only the request that named it fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from gridhand.core.errors import StrategyFailed, short_repr
from gridhand.core.model.requests import Request
from gridhand.core.placement.snapshot import Snapshot
from gridhand.core.placement.strategies import OwnStrategy, strategy_label

_Text = str | bytes | bytearray


def own_scores(
    strategy: OwnStrategy, asked: Request, snapshot: Snapshot, rows: Sequence[int]
) -> list[float]:
    """Return the score of each row, or raise StrategyFailed, which names the strategy."""
    name = strategy_label(strategy)
    try:
        scores = _read(name, strategy(asked, snapshot, list(rows)))
    except StrategyFailed:
        raise
    except (Exception, SystemExit) as error:
        raise StrategyFailed(name, f"raised {short_repr(error)}") from error
    if len(scores) != len(rows):
        raise StrategyFailed(name, f"returned {len(scores)} scores for {len(rows)} nodes")
    return scores


def _read(name: str, returned: Any) -> list[float]:
    if isinstance(returned, Mapping | Set | _Text) or not isinstance(returned, Iterable):
        raise StrategyFailed(name, f"returned {short_repr(returned)} instead of a list of scores")
    return [_read_score(name, score) for score in returned]


def _read_score(name: str, score: Any) -> float:
    try:
        number = math.nan if isinstance(score, _Text) else float(score)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isnan(number):
        raise StrategyFailed(name, f"returned the score {short_repr(score)}, which is no number")
    return number
