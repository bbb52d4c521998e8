"""Functions of `__main__` share its globals in the process they are sent to."""

import subprocess
import sys

import pytest

HEAD = """
from gridhand import GridExecutor, task

def told(*values):
    print(*values, flush=True)
"""

#   what it shows: the program, and what it prints
CASES = {
    "what the initializer has bound is seen by functions": (
        """
def init(a):
    global A
    A = a
def use(x):
    return A, x
with GridExecutor(1, cpu=0.1, initializer=init, initargs=(7,)) as executor:
    told(*executor.map(use, [1, 2]))
""",
        "(7, 1) (7, 2)",
    ),
    "it is seen instead of what the program has there": (
        """
A, FILLED = None, {}
def set_it(a):
    global A
    A = a
    FILLED[a] = True
def init(a):
    set_it(a)
def use(x):
    return A, FILLED, x
with GridExecutor(1, cpu=0.1, initializer=init, initargs=(7,)) as executor:
    told(*executor.map(use, [1]), A, FILLED)
""",
        "(7, {7: True}, 1) None {}",
    ),
    "what one function has set another sees": (
        """
count = 0
def more():
    global count
    count += 1
def look():
    return count
with GridExecutor(1, cpu=0.1) as executor:
    for _ in range(3):
        executor.submit(more)
    told(executor.submit(look).result(), count)
""",
        "3 0",
    ),
    "what the program has bound or changed since is sent anew": (
        """
number, numbers = 1, [1]
def helper():
    return "old"
first = lambda: (number, numbers, helper())
with GridExecutor(1, cpu=0.1) as executor:
    told(executor.submit(first).result())
    number = 2
    numbers.append(2)
    def helper():
        return "new"
    second = lambda: (number, numbers, helper())
    told(executor.submit(second).result())
    told(executor.submit(first).result())
""",
        "(1, [1], 'old') (2, [1, 2], 'new') (2, [1, 2], 'new')",
    ),
    "and what the initializer has set stays": (
        """
number = 1
def init():
    global A
    A = [7]
with GridExecutor(1, cpu=0.1, initializer=init) as executor:
    for number in range(3):
        told(executor.submit(lambda: (A, number)).result())
""",
        "([7], 0) ([7], 1) ([7], 2)",
    ),
    "what a function has set is not taken for what the program binds later": (
        """
def load():
    global model
    model = "the worker's"
    return model
with GridExecutor(1, cpu=0.1) as executor:
    executor.submit(load).result()
    model = "the program's"
    told(executor.submit(lambda: model).result())
""",
        "the program's",
    ),
    "functions that call each other, methods and decorated ones": (
        """
import functools
def traced(f):
    @functools.wraps(f)
    def inner(n):
        seen.append(n)
        return f(n)
    return inner
seen = []
@traced
def even(n):
    return n == 0 or odd(n - 1)
def odd(n):
    return n != 0 and even(n - 1)
class Counter:
    def look(self):
        return seen
with GridExecutor(1, cpu=0.1) as executor:
    told(executor.submit(even, 4).result(), executor.submit(odd, 4).result())
    told(executor.submit(Counter().look).result(), seen)
""",
        "True False [4, 2, 0, 3, 1] []",
    ),
    "tasks as well": (
        """
cache = {}
@task(cpu=0.1)
def fill(key):
    cache[key] = key * 2
    return __name__
@task(cpu=0.1)
def look():
    return cache
told(fill.submit(3).result(), look.submit().result())
""",
        "__main__ {3: 6}",
    ),
}


@pytest.mark.parametrize(("program", "printed"), CASES.values(), ids=CASES)
def test_shared(tmp_path, monkeypatch, program, printed):
    monkeypatch.setenv("GRIDHAND_LINGER_S", "20")  # so that there is one worker
    (tmp_path / "program.py").write_text(HEAD + program)
    words = [sys.executable, "program.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, timeout=100, text=True)
    assert "Traceback" not in done.stderr
    assert " ".join(done.stdout.split("\n")).strip() == printed
