"""Tasks of modules that a worker could not import under their names."""

import json
import subprocess
import sys
import textwrap

import pytest

SHARED = """
    import os
    from gridhand import task

    class Point:
        def __init__(self, x): self.x = x

    def helper(x):
        return Point(x + 1)

    @task(cpu=0)
    def add(point):
        return helper(point.x)
"""
PROGRAMS = {
    "a child of multiprocessing": """
    import multiprocessing, sys
    SHARED
    def child(queue):
        future = add.submit(Point(1))
        found = future.result(60)
        queue.put((__name__, found.x, type(found) is Point))

    if __name__ == "__main__":
        spawn = multiprocessing.get_context("spawn")
        queue = spawn.Queue()
        process = spawn.Process(target=child, args=(queue,))
        process.start()
        name, x, same = queue.get(timeout=100)
        process.join()
        assert (name, x, same) == ("__mp_main__", 2, True), (name, x, same)
    """,
    "a file run by runpy": """
    import runpy
    runpy.run_path(SHARED_FILE, run_name="run_by_path")
    """,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_tasks_of_modules_that_cannot_be_imported_are_sent_by_value(program, home, tmp_path):
    shared = textwrap.dedent(SHARED)
    ran = shared + "found = add.submit(Point(1)).result(60)\nassert found.x == 2, found\n"
    (tmp_path / "shared_file.py").write_text(ran)
    text = textwrap.dedent(program).replace(
        "SHARED_FILE", json.dumps(str(tmp_path / "shared_file.py"))
    )
    (tmp_path / "program.py").write_text(text.replace("SHARED\n", shared))
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr


def test_tests_in_importlib_mode_can_submit_tasks(home, tmp_path):
    folder = tmp_path / "tests"
    folder.mkdir()
    test = "\ndef test_it():\n    assert add.submit(Point(1)).result(60).x == 2\n"
    (folder / "test_by_path.py").write_text(textwrap.dedent(SHARED) + test)
    words = [
        sys.executable,
        "-P",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
    ]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout
