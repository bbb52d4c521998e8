"""How a job ended: its exit code, and what its output does not say."""

from __future__ import annotations

from typing import Any

OWN_FAILURE = 125
TIMED_OUT = 124  # as with timeout(1), whatever the command makes of SIGTERM


def exit_code(job: dict[str, Any], instead: int | None = None) -> int:
    """Return the job's exit code, or 124 if it timed out; without one, `instead` or 125."""
    if job["state"] == "succeeded":
        return 0
    if job.get("reason") == "timeout":
        return TIMED_OUT
    if code := job.get("exit_code"):
        return int(code)
    return instead or OWN_FAILURE


def end_message(job: dict[str, Any]) -> str:
    """Return why the job ended; empty if it exited by itself."""
    if job["state"] == "succeeded" or job.get("reason") == "exit":
        return ""
    message = job.get("message")
    if message:
        return str(message)
    if job.get("reason") == "signal" and job.get("signal"):
        return f"killed by {signal_name(job['signal'])}"
    return _MESSAGES.get(job.get("reason") or "", str(job["state"]))


def signal_name(number: int) -> str:
    from signal import Signals

    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


_MESSAGES = {
    "oom": "killed: out of memory",
    "timeout": "killed: time limit exceeded",
    "start_failed": "it could not be started",
    "preempted": "preempted by more urgent work",
    "node_lost": "its node was lost",
    "agent_lost": "exit status unknown: the starter on its node died",
    "gang": "cancelled: another member of its gang ended without success",
    "device_lost": "one of its GPUs was lost",
    "client_gone": "cancelled: its client is gone",
    "dependency": "dependency failed",
    "released": "cancelled: its reservation was released",
    "deadline": "cancelled: it could no longer end before its deadline",
    "expired": "cancelled: it waited longer than its queue allows",
    "cancelled": "cancelled",
}
