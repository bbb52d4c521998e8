"""Types of tasks, as mypy sees them."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent / "typing_example.py"


def test_mypy_knows_the_types_of_tasks(tmp_path):
    pytest.importorskip("mypy")
    words = ["--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path), str(EXAMPLE)]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "", *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
