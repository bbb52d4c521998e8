"""The effect that the end of one member of a gang has on the others, in the same transaction."""

from __future__ import annotations

from gridhand.core.jobs import job as jobs
from gridhand.core.jobs.gang import end_text, members_of
from gridhand.core.jobs.job import Job, JobState, Reason
from gridhand.core.ledger.ledger import Ledger


def end_with_member(ended: Job, ledger: Ledger, now: int) -> None:
    """Stop the other members of a gang, one of which has failed or is queued again.

    Members that are queued again already are given up if this one has ended for good.
    """
    if ended.state is JobState.SUCCEEDED:
        return
    why = end_text(ended)
    for member in members_of(ended, ledger.jobs.open):
        attempt = member.attempt
        if attempt is not None:
            stopped = jobs.stop(member, attempt.number, Reason.GANG, why)
            if stopped is not member:
                ledger.put_job("job.stopping", stopped, why)
        elif not ended.open:
            ledger.put_job("job.ended", jobs.cancel(member, now=now, reason=Reason.GANG), why)
