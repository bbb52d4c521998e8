"""What every store promises of jobs, on PostgreSQL: the suite of `tests/store`."""

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
ours = importlib.import_module("test_contract_postgres")
contract = importlib.import_module("test_contract_jobs")
durable, kind, store, tools = ours.durable, ours.kind, ours.store, ours.tools

globals().update(ours.own(contract))
test_whatever_happened_to_jobs_and_was_forgotten_the_rest_can_be_replayed = ours.fewer(
    contract.test_whatever_happened_to_jobs_and_was_forgotten_the_rest_can_be_replayed,
    contract.STEP,
)


def test_the_whole_contract_is_here():
    assert len([name for name in globals() if name.startswith("test_")]) > 15
