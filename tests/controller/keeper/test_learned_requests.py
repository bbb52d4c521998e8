"""The request mix that placement learns from what jobs and allocations ask for."""

from gridhand import Request
from gridhand.controller.keeper.questions import Read
from gridhand.controller.keeper.tickets import NOWHERE, Ticket
from gridhand.core.ledger.allocations import Terms
from gridhand.core.operations import Allocate


def test_a_request_teaches_the_mix_once_however_often_it_is_tried(desk):
    desk.nodes(a=1)
    learned = []
    snapshot = desk.ask(Read(lambda context: context.snapshot))
    snapshot.learn = lambda asked: learned.append(asked.amounts["cpu"] // 10_000)
    running = [desk.submit(1)]
    desk.submit(indices=range(3), at_once=1)
    ticket = Ticket(
        Allocate("ann", requests=(Request.of(cpu=1),), terms=Terms("ann"), wait_ms=60_000), NOWHERE
    )
    desk.keeper.submit([ticket])
    for _ in range(3):
        desk.end(*running)
        running = desk.running()
    assert learned == [1] * 5


def test_jobs_that_wait_teach_the_mix_after_a_restart(desk):
    desk.nodes(a=1)
    for _ in range(3):
        desk.submit()
    desk.restart()
    assert desk.ask(Read(lambda context: context.snapshot.mix._seen)) == 2
