"""A list of commands as plain data: its body, and its stored reply."""

from gridhand.core.command_list import CommandFault, CommandList, CommandOutcome
from gridhand.core.errors import UnknownAllocation
from gridhand.core.ledger.allocations import Terms
from gridhand.core.ledger.ledger import Ledger, Placement
from gridhand.core.model.nodes import Node
from gridhand.core.model.requests import Request
from gridhand.core.operations import Allocate, Granted, MoveAllocation

ASK = Request.of(cpu=1)


def held():
    ledger = Ledger()
    ledger.register(Node.of("n1", cpu=4))
    return ledger.grant([Placement(ASK, "n1", ())], Terms("ann"), now=0)


def test_the_reply_of_each_command_is_read_as_it_was_written():
    commands = Allocate("ann", None, (ASK,), Terms("ann")), MoveAllocation("ann", None, "a1-9")
    listing = CommandList("ann", "x", commands)
    made = held()
    fault = CommandFault.of(UnknownAllocation("a1-9"))
    text = listing.encode_reply([CommandOutcome(Granted(made, True)), CommandOutcome(None, fault)])
    assert listing.decode_reply(text) == [
        CommandOutcome(Granted(made, False)),
        CommandOutcome(None, fault),
    ]


def test_lists_of_other_commands_have_other_bodies():
    one, two = (MoveAllocation("ann", None, f"a1-{number}") for number in (1, 2))
    bodies = {CommandList("ann", "x", some).body() for some in ((one,), (two,), (one, two))}
    assert len(bodies) == 3


def test_a_list_frees_something_only_if_all_of_it_does():
    release, allocate = MoveAllocation("ann", None, "a1-1"), Allocate("ann", None, (ASK,))
    assert CommandList("ann", None, (release,)).frees_resources()
    assert not CommandList("ann", None, (release, allocate)).frees_resources()
