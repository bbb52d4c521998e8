"""Translate the options of `#SBATCH` lines into those of `grid run`.

Options of Slurm that mean nothing here are collected, so that the user can be told.
"""

from __future__ import annotations

from collections.abc import Iterator

_SAME = {
    "cpus-per-task": "--cpus", "mem": "--mem", "time": "--time", "job-name": "--name",
    "output": "--output", "error": "--error", "input": "--input", "array": "--array",
    "dependency": "--after", "nodelist": "--node", "exclude": "--exclude", "tmp": "--disk",
    "begin": "--begin", "deadline": "--deadline", "signal": "--signal",
}  # fmt: skip
_GPUS = frozenset({"gpus", "gres", "gpus-per-node", "gpus-per-task"})
_SHORT = {
    "c": "cpus-per-task", "t": "time", "J": "job-name", "o": "output", "e": "error", "i": "input",
    "a": "array", "d": "dependency", "w": "nodelist", "x": "exclude", "G": "gpus", "n": "ntasks",
    "N": "nodes", "p": "partition", "A": "account", "q": "qos", "D": "chdir", "C": "constraint",
    "L": "licenses", "M": "clusters", "b": "begin", "B": "extra-node-info", "m": "distribution",
}  # fmt: skip
_ONE_IS_USUAL = frozenset({"ntasks", "nodes", "ntasks-per-node"})


def translate_sbatch(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the options of `grid run`, and the words that have no meaning here.

    >>> translate_sbatch(["-c", "2", "--gres=gpu:a100:1", "-p", "debug", "-N1"])
    (['--cpus=2', '--gpus=1', '--gpu-model=a100'], ['--partition=debug'])
    """
    ours: list[str] = []
    ignored: list[str] = []
    for name, value in _options(words):
        if name in _SAME and value is not None:
            ours.append(f"{_SAME[name]}={value}")
        elif name in _GPUS and (gpus := _gpus(name, value or "")):
            ours += gpus
        elif name == "nodes" and value is not None and value.isdecimal() and value != "1":
            ours.append(f"--nodes={value}")
        elif not (name in _ONE_IS_USUAL and value == "1"):
            ignored.append(f"--{name}" if value is None else f"--{name}={value}")
    return ours, ignored


def _options(words: list[str]) -> Iterator[tuple[str, str | None]]:
    """Yield the long name and the value of each option."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            name, equals, text = word[2:].partition("=")
            value = text if equals else None
        elif word.startswith("-") and len(word) > 1:
            name, value = _SHORT.get(word[1], word[1]), word[2:].removeprefix("=") or None
        else:
            name, value = word, None
        if value is None and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        yield name, value


def _gpus(name: str, value: str) -> list[str]:
    """Return options for `2`, `a100:2`, or in `--gres` for `gpu:2` and `gpu:a100:2`."""
    parts = value.split(":")
    if name == "gres":
        if parts[0] != "gpu":
            return []
        parts = parts[1:] or ["1"]
    count = parts[-1] if parts[-1].isdecimal() else "1"
    model = parts[0] if not parts[0].isdecimal() else None
    return [f"--gpus={count}", *([f"--gpu-model={model}"] if model else [])]
