"""How a job ended: as an exit code, and in the words that are left to say."""

from __future__ import annotations

from typing import Any

OWN_FAILURE = 125


def exit_code(job: dict[str, Any], instead: int | None = None) -> int:
    """The job's own code; `instead`, or 125, for one that has none to give.

    A job that handled the warning before its time-out and ended with 0 has not succeeded.
    """
    if job["state"] == "succeeded":
        return 0
    if code := job.get("exit_code"):
        return int(code)
    return instead or OWN_FAILURE


def last_words(job: dict[str, Any]) -> str:
    """What its output does not tell: nothing, if it ended by itself with a code of its own."""
    if job["state"] == "succeeded" or job.get("reason") == "exit":
        return ""
    message = job.get("message")
    if message:
        return str(message)
    if job.get("reason") == "signal" and job.get("signal"):
        return f"ended by {signal_name(job['signal'])}"
    return _WORDS.get(job.get("reason") or "", f"it is {job['state']}")


def signal_name(number: int) -> str:
    from signal import Signals

    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


_WORDS = {
    "oom": "it ran out of memory",
    "timeout": "it took longer than its time limit",
    "start_failed": "it could not be started",
    "preempted": "its place was needed for more urgent work",
    "node_lost": "its node was lost",
    "agent_lost": "its exit status is unknown: what ran it on the node died",
    "device_lost": "a GPU of it was lost",
    "client_gone": "its client was gone",
    "dependency": "a job that it was to run after did not end as it had to",
    "released": "what it ran in was given up",
    "cancelled": "cancelled",
}
