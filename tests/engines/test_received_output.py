"""Output that a worker sends twice, because it got no answer."""

import asyncio

from gridhand.engines.received_output import ReceivedOutput, StreamPlace

KEY = ("7", 1)


def test_a_part_that_comes_again_while_it_is_written_is_appended_once(tmp_path):
    place = StreamPlace(str(tmp_path / "own"), 1000, "append")
    received = ReceivedOutput()

    async def send():
        parts = [received.take(KEY, "stdout", place, str(tmp_path / "job"), 0, b"line\n") for _ in range(5)]  # fmt: skip
        return await asyncio.gather(*parts)

    assert {one.end for one in asyncio.run(send())} == {5}
    assert (tmp_path / "own").read_bytes() == b"line\n"
    received.forget(KEY)
    assert not received._locks
