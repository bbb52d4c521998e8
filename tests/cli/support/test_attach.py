"""The output of a job on its way to ours."""

from types import SimpleNamespace

import pytest

from gridhand.cli.support import attach


class ShortWriter:
    """Takes three bytes at a time, as a pipe does when a signal interrupts a write."""

    def __init__(self):
        self.taken = b""

    def write(self, data):
        self.taken += bytes(data[:3])
        return min(3, len(data))

    def flush(self): ...


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_write_that_is_cut_short_is_continued(monkeypatch, stream):
    out = ShortWriter()
    monkeypatch.setattr(attach.sys, stream, SimpleNamespace(buffer=out))
    attach.write(stream, b"0123456789")
    assert out.taken == b"0123456789"
