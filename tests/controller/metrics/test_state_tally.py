"""The tally counts what the ledger's changes say, as a ledger really records them."""

from gridhand.controller.metrics.state_tally import StateTally
from gridhand.core.jobs import job as jobs
from gridhand.core.jobs.job import AttemptEnd, JobSpec, JobState, Priority, Reason
from gridhand.core.jobs.retry_policy import RetryPolicy
from gridhand.core.ledger.ledger import Change
from gridhand.core.model.requests import Request

ASKED = Request.of({"cpu": 1})


class Story:
    """One job, and the tally of what happens to it."""

    def __init__(self, **spec):
        self.tally = StateTally()
        work = JobSpec("ann", ("true",), "/", request=ASKED, **spec)
        self.job = jobs.submit(work, id="1", number=1, now=1000)
        self._tell("job.submitted", None)

    def _tell(self, kind, before):
        self.tally.follow([Change(kind, "1", before, self.job, "")])

    def start(self, now):
        before, number = self.job, len(self.job.attempts) + 1
        self.job = jobs.start(before, node="n1", allocation=f"a1-{number}", now=now)
        self._tell("job.started", before)

    def end(self, reason, now=9000):
        before, attempt = self.job, self.job.attempts[-1]
        how = AttemptEnd(attempt.number, attempt.allocation, reason, exit_code=1)
        self.job = jobs.end(before, how, now=now)
        self._tell("job.requeued" if self.job.open else "job.ended", before)

    def waits(self):
        return {priority: seen.total for priority, seen in self.tally.waits.items() if seen.total}


def test_a_job_is_queued_by_its_priority_until_it_starts():
    story = Story(priority=Priority.HIGH)
    assert (story.tally.queued["high"], story.tally.submitted) == (1, 1)
    story.start(3500)
    assert story.tally.queued["high"] == 0
    assert story.waits() == {"high": 2.5}


def test_a_job_waits_from_when_it_was_to_begin_and_only_its_first_start_counts():
    story = Story(begin_ms=2000, retry=RetryPolicy(tries=2, delay_ms=0))
    story.start(3250)
    story.end(Reason.EXIT)
    story.start(99_000)
    assert story.waits() == {"medium": 0.25}


def test_retries_preemptions_and_memory_are_told_apart():
    story = Story(retry=RetryPolicy(tries=2, delay_ms=0))
    story.start(2000)
    story.end(Reason.PREEMPTED)
    story.start(3000)
    story.end(Reason.OOM)
    story.start(4000)
    story.end(Reason.EXIT)
    tally = story.tally
    assert tally.retries == {Reason.PREEMPTED: 1, Reason.OOM: 1}
    assert (tally.preemptions, tally.out_of_memory) == (1, {"host": 1})
    assert tally.finished == {JobState.FAILED: 1}


def test_a_job_that_is_cancelled_while_it_waits_had_no_attempt():
    story = Story()
    before, story.job = story.job, jobs.cancel(story.job, now=2000)
    story._tell("job.ended", before)
    assert (story.tally.finished, story.tally.queued["medium"]) == ({JobState.CANCELLED: 1}, 0)


def test_what_was_read_from_the_store_is_counted_anew():
    story = Story()
    story.tally.replace([story.job, story.job], [])
    assert (story.tally.queued["medium"], story.tally.submitted) == (2, 1)
