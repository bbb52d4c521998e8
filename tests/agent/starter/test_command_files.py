"""Whose fault it is that a command was not started: the node's, or the command's own."""

import errno
import os

import pytest

from gridhand.agent.starter.command_files import (
    NOT_FOUND,
    NOT_RUNNABLE,
    failed,
    refused_program,
)

SHORTAGES = ["EAGAIN", "ENOMEM", "ENFILE", "EMFILE", "ENOSPC"]


def error(name, path=None):
    number = getattr(errno, name)
    return OSError(number, os.strerror(number), path)


@pytest.mark.parametrize("name", SHORTAGES)
def test_what_the_node_is_short_of_is_not_the_fault_of_the_job(name):
    """Row 91: such a job is requeued without counting it."""
    for failure in (
        failed("cannot open", "/out", error(name)),
        refused_program(b"/bin/true", error(name)),
    ):
        assert failure.shortage
        assert failure.code is None
        assert os.strerror(getattr(errno, name)) in str(failure)


#    what it shows                          error     program         code
OWN_FAULTS = {
    "there is no such program":            ("ENOENT", b"/no/such",    NOT_FOUND),
    "what runs the program is not there":  ("ENOENT", b"/bin/sh",     NOT_RUNNABLE),
    "the program may not be run":          ("EACCES", b"/etc/passwd", NOT_RUNNABLE),
    "the program is none":                 ("ENOEXEC", b"/bin/sh",    NOT_RUNNABLE),
}  # fmt: skip


@pytest.mark.parametrize(("name", "program", "code"), OWN_FAULTS.values(), ids=OWN_FAULTS)
def test_what_is_wrong_with_the_command_is_its_own_fault(name, program, code):
    failure = refused_program(program, error(name, program))
    assert (failure.shortage, failure.code) == (False, code)
    assert not failed("cannot open", "/out", error(name)).shortage
