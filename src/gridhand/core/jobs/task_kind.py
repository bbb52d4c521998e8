"""The kind of task that a job is, under which its runs are compared."""

from __future__ import annotations

import re

from gridhand.core.jobs.spec import JobSpec

_INTERPRETER = re.compile(r"(ba|da|z|fi)?sh|python[\d.]*|perl|ruby|node|Rscript|julia|env")


def task_kind(work: JobSpec) -> str:
    """Return the stated type; else the name of the program or of its script.

    `python3 train.py --lr 0.1` is `train.py`, and `/usr/bin/ffmpeg -i a.mp4` is `ffmpeg`.
    """
    if work.task_type is not None:
        return work.task_type
    program = _base(work.command[0])
    if _INTERPRETER.fullmatch(program):
        script = next((word for word in work.command[1:] if _is_script(word)), None)
        return program if script is None else _base(script)
    return program


def _is_script(word: str) -> bool:
    """Return whether a word names a script: it has an ending, and is not code or an option."""
    return re.fullmatch(r"[^-\s][^\s]*\.\w{1,4}", word) is not None


def _base(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2] or path
