"""The folder of a detached call: what was checked is what is read."""

import marshal
import os
from types import SimpleNamespace

from gridhand.library.functions import detached
from gridhand.worker import detached_call
from gridhand.worker.encoded_values import dumps


def make_call(folder, value):
    folder.mkdir(mode=0o700)
    result = marshal.dumps((detached_call.RETURNED, bytes(dumps(value))))
    (folder / detached_call.RESULT).write_bytes(result)


def test_a_folder_that_is_replaced_after_the_check_is_not_read(tmp_path, monkeypatch):
    make_call(tmp_path / "call", "ours")
    make_call(tmp_path / "planted", "theirs")
    command = ["python", detached._ONCE, str(tmp_path / "call" / "call")]
    job = SimpleNamespace(command=command, id="1", name="f", state="succeeded")
    read = detached_call.read_result

    def replaced(folder):
        os.rename(tmp_path / "call", tmp_path / "moved")
        os.symlink(tmp_path / "planted", tmp_path / "call")
        return read(folder)

    monkeypatch.setattr(detached_call, "read_result", replaced)
    assert detached.result_of(job) == "ours"
