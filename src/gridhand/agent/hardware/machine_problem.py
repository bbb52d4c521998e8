"""Problem: something about this machine that a person should know, and how to mend it.

Looking at hardware finds faults that must neither stop the agent nor go unsaid. They are values,
and travel with what was found.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """`what` says what is wrong, `hint` how to mend it, `device` which GPU it is about, if any."""

    what: str
    hint: str
    device: str = ""

    def __str__(self) -> str:
        return f"{self.what}. {self.hint}"
