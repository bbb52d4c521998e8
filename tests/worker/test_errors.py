"""What a function raised arrives as itself, or as text if it cannot be read where it arrives."""

import marshal
import pickle

import pytest

from gridhand.core.errors import CallFailed
from gridhand.worker.errors import RemoteTraceback, failure, raised


def bytes_of(error):
    try:
        raise error
    except BaseException as caught:
        return failure(caught)


def with_pickle(data, pickled):
    """The same failure with another pickle, as from a worker that has other modules."""
    return marshal.dumps((pickled, *marshal.loads(data)[1:]))


def test_an_error_arrives_as_itself_with_where_it_happened():
    error = raised(bytes_of(KeyError("k")), "f")
    assert (type(error), error.args) == (KeyError, ("k",))
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "KeyError" in str(error.__cause__)


class Unreadable(Exception):
    """Its pickle names something that is not here."""

    def __reduce__(self):
        return eval, ("no_such_name",)


UNREADABLE = {
    "a module that is not here": b"cno_such_module\nProblem\n.",
    "a class that is not here": b"cbuiltins\nNoSuchError\n.",
    "a constructor that fails": pickle.dumps(Unreadable()),
    "a torn pickle": pickle.dumps(KeyError("k"))[:-5],
    "no pickle": b"\xff",
}


@pytest.mark.parametrize("pickled", UNREADABLE.values(), ids=UNREADABLE)
def test_an_error_that_cannot_be_read_here_arrives_as_text(pickled):
    error = raised(with_pickle(bytes_of(KeyError("the key")), pickled), "f")
    assert isinstance(error, CallFailed)
    assert "KeyError: 'the key'" in str(error)
    assert "the key" in str(error.__cause__)


def test_an_error_that_cannot_be_read_again_is_not_sent_as_a_pickle():
    data = bytes_of(Unreadable("something"))
    assert marshal.loads(data)[0] == b"" or isinstance(raised(data, "f"), Unreadable)
    assert "something" in str(raised(data, "f"))


def test_an_error_whose_text_cannot_be_made_still_has_a_name():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

        def __reduce__(self):
            raise TypeError

    error = raised(bytes_of(Mute()), "f")
    assert isinstance(error, CallFailed | Mute)
    assert "Mute" in repr(error) or "Mute" in str(error)
