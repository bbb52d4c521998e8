"""What people read about preemption: in a dry run and in the terminal of an attached job."""

from gridhand.cli.support.attach import Attached
from gridhand.cli.support.plan_output import _text


def test_a_dry_run_says_whom_it_would_stop_and_when_it_would_start():
    stop = {"name": "x", "owner": "bob", "ran_s": 360.0, "stopping": False}
    plan = {
        "starts": False, "why": "no room for 2 cores", "starts_in_s": 30.0, "starts_on": "n1",
        "stops": [{"id": "11", **stop}, {"id": "12", **stop}],
    }  # fmt: skip
    assert _text(plan, "the job").splitlines()[:2] == [
        "the job would stop 2 jobs of bob (11, 12), which have run for 12m in all,",
        "and start in 30s on n1",
    ]


class Frames:
    """A client whose job is preempted; the frame is repeated."""

    def follow(self, id, **_):
        attempt = {"number": 1, "preempted_by": "57"}
        job = {"id": id, "array": None, "state": "queued", "why": "", "attempts": [attempt]}
        for _ in range(2):
            yield {"event": "job", "job": job}, b""
        yield {"event": "end", "job": {**job, "state": "succeeded"}}, b""


def test_the_terminal_of_an_attached_job_says_once_by_whom_it_was_preempted(capfd):
    job = {"id": "9", "array": None}
    Attached(Frames(), job).follow(job)
    said = "grid: job 9: preempted by job 57 (urgent); back in the queue\n"
    assert capfd.readouterr().err == said
