"""How many examples hypothesis tries: moderately many in `make test`, very many in `make soak`."""

import os

SOAK = os.environ.get("GRIDHAND_SOAK") == "1"


def examples(usual):
    """Return `usual`, or twenty times as many in `make soak`."""
    return usual * 20 if SOAK else usual
