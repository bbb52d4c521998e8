"""`map` of an executor and of a task: when a call fails, or nobody wants more, the rest is cancelled."""

from collections import deque
from concurrent.futures import Future, TimeoutError

import pytest

from gridhand.library.functions import executor
from gridhand.library.functions.task import Task


def futures(count):
    made = [Future() for _ in range(count)]
    made[0].set_result(0)
    return made


class Submitting:
    """What a task's `map` needs of the task."""

    def __init__(self):
        self.submitted = []

    def submit(self, value):
        self.submitted.append(Future())
        return self.submitted[-1]


def of_executor(made, end=None):
    return executor._results(list(made), end)


def of_task(made, end=None):
    return Task._results(Submitting(), iter(()), deque(made), end)


BOTH = pytest.mark.parametrize("results", [of_executor, of_task], ids=["executor", "task"])


@BOTH
def test_a_failure_cancels_the_rest(results):
    made = futures(5)
    made[1].set_exception(LookupError("nothing"))
    made[3].set_running_or_notify_cancel()
    found = results(made)
    assert next(found) == 0
    with pytest.raises(LookupError):
        next(found)
    assert [one.cancelled() for one in made] == [False, False, True, False, True]


@BOTH
def test_a_timeout_cancels_the_rest(results):
    made = futures(4)
    found = results(made, 0.0)  # it is long over
    assert next(found) == 0
    with pytest.raises(TimeoutError):
        next(found)
    assert [one.cancelled() for one in made[2:]] == [True, True]


@BOTH
def test_who_takes_no_more_results_cancels_the_rest(results):
    made = futures(3)
    found = results(made)
    assert next(found) == 0
    found.close()
    assert [one.cancelled() for one in made] == [False, True, True]


@BOTH
def test_results_come_in_order_and_nothing_is_cancelled(results):
    made = futures(4)
    for number in (3, 1, 2):
        made[number].set_result(number)
    assert list(results(made)) == [0, 1, 2, 3]


def test_a_task_submits_one_more_for_each_result_that_was_taken():
    task = Submitting()
    made = futures(2)
    made[1].set_result(1)
    found = Task._results(task, iter([(7,), (8,)]), deque(made), None)
    assert next(found) == 0
    assert task.submitted == []
    assert next(found) == 1
    assert len(task.submitted) == 1
    task.submitted[0].set_exception(LookupError("nothing"))
    with pytest.raises(LookupError):
        next(found)
    assert len(task.submitted) == 2
    assert task.submitted[1].cancelled()
