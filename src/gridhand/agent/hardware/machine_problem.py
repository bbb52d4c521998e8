"""MachineProblem: a fault of this machine that people should know, and how to mend it.

Faults of the hardware must neither stop the agent nor go unreported, so they are values that
travel with what was found.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MachineProblem:
    """A fault: `what` is wrong, a `hint` how to mend it, and the GPU `device`, if it is one."""

    what: str
    hint: str
    device: str = ""

    def __str__(self) -> str:
        return f"{self.what}. {self.hint}"
