"""The controller that is started in place of a real one, and which ones were."""

from pathlib import Path

FAKE = Path(__file__).parent / "fake_controller.py"


def started(home):
    """The pids of the controllers that were started in this home."""
    file = home / "starts"
    return [int(line) for line in file.read_text().split()] if file.exists() else []
