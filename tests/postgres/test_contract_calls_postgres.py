"""What every store promises of calls, on PostgreSQL: the suite of `tests/store`."""

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
ours = importlib.import_module("test_contract_postgres")
contract = importlib.import_module("test_contract_calls")
durable, kind, store, tools = ours.durable, ours.kind, ours.store, ours.tools

globals().update(ours.own(contract))


def test_the_whole_contract_is_here():
    assert len([name for name in globals() if name.startswith("test_")]) > 15
