"""Errors of the connections to agents and starters.

LinkError
├── LinkLost      no answer; the request may have been carried out, and repeating it is safe
│   └── LinkAbsent    nobody listens
└── LinkRefused   the other side answered with an error
"""

from __future__ import annotations

from typing import ClassVar

from gridhand.core.errors import GridError


class LinkError(GridError):
    """Base class for failures to speak with an agent or a starter."""

    code: ClassVar[str] = "link_error"


class LinkLost(LinkError):
    """No answer arrived. The request may have been carried out; repeating it is safe."""

    code = "link_lost"


class LinkAbsent(LinkLost):
    """Nobody listens in the folder, so starting a new process there is right."""

    code = "link_absent"


class LinkRefused(LinkError):
    """The other side answered with an error; `because` is its error code."""

    code = "link_refused"

    def __init__(self, who: str, because: str, message: str) -> None:
        super().__init__(f"the {who} refuses: {message}", hint="See which epoch is in charge.")
        self.because = because
