"""The settings of a controller: read at its start, read again on request, and refused if wrong."""

from pathlib import Path

import pytest

from controller_place import in_place
from gridhand.config.config_errors import InvalidConfig
from gridhand.controller.keeper.questions import Read
from gridhand.controller.settings import Settings
from gridhand.core.jobs.spec import Priority
from gridhand.core.placement.strategies import STRATEGIES
from gridhand.core.queue.named_queues import QueueRules, Quota

STEP = Read(lambda context: context.snapshot.memory_step_bytes)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "cluster_config.yaml"


def test_without_a_file_everything_has_its_default():
    settings = Settings()
    assert (settings.store, settings.strategy, settings.kept_ms()) == (None, None, 30 * 86_400_000)
    assert {setting["from"] for setting in settings.facts()["values"].values()} == {"default"}


def test_each_value_has_its_source_and_no_password_is_shown(file):
    file.write_text("strategy: pack\nstore: postgresql://ann:secret@db.example/grid\n")
    facts = Settings(str(file)).facts()
    assert facts["values"]["strategy"] == {"value": "pack", "from": str(file)}
    assert facts["values"]["retention.jobs"] == {"value": 2592000.0, "from": "default"}
    assert "secret" not in str(facts)


def test_a_wrong_file_is_refused_at_the_start(file):
    file.write_text("strategy: bestfit")
    with pytest.raises(InvalidConfig):
        Settings(str(file))


@in_place()
async def test_a_reload_changes_what_it_can_and_nothing_that_runs(place):
    file = Path(place.home.folder) / "lab.yaml"
    settings = place.controller.settings
    settings.path = str(file)

    async def reload(text):
        file.write_text(text)
        return await settings.reload(place.controller.ask)

    id = await place.submit(2)
    await place.sent((id, 1))
    told = await reload(
        "strategy: pack\nretention: {jobs: 1d}\nname: lab\nqueues: {night: {}}\n"
        "memory_granularity: 100MB"
    )
    assert told["changed"] == ["memory_granularity", "queues", "retention", "strategy"]
    assert (told["needs_restart"], told["not_used_yet"]) == (["name"], [])
    assert await place.controller.ask(STEP) == 10**8
    assert settings.kept_ms() == 86_400_000
    strategy = Read(lambda context: context.strategy)
    assert await place.controller.ask(strategy) is STRATEGIES["pack"]
    assert await place.running() == [id]
    with pytest.raises(InvalidConfig):
        await reload("strategy: bestfit")
    assert await place.controller.ask(strategy) is STRATEGIES["pack"]
    await reload("strategy: pack")
    assert await place.controller.ask(STEP) == 0
    place.engine.end((id, 1))


@in_place()
async def test_memory_granularity_counts_from_the_start(place):
    file = Path(place.home.folder) / "lab.yaml"
    file.write_text("memory_granularity: 1GiB")
    await place.close()
    place.settings = Settings(str(file))
    await place.open()
    assert await place.controller.ask(STEP) == 2**30


QUEUES = """
queues:
  gpu: {priority: high, owners: [ann], max_length: 9, default_duration: 2h, expiry: 1d, weight: 3,
        defaults: {memory_gb: 4}, limits: {cpu: 8}, quota: {running: {gpu: 0}, max_running_jobs: 2},
        owner_quota: {queued: {cpu: 4}, max_queued_jobs: 3}}
quotas: {ann: {running: {cpu: 2}, weight: 2}, "*": {max_queued_jobs: 5}}
"""


def test_queues_and_quotas_are_read_as_plain_values(tmp_path):
    (tmp_path / "lab.yaml").write_text(QUEUES)
    queues = Settings(str(tmp_path / "lab.yaml")).queues
    assert queues.queues["gpu"] == QueueRules(
        "gpu",
        Priority.HIGH,
        frozenset({"ann"}),
        max_length=9,
        default_duration_ms=7_200_000,
        expiry_ms=86_400_000,
        defaults={"memory": 4 * 10**9},
        limits={"cpu": 80_000},
        quota=Quota({"gpu": 0}, max_running_jobs=2),
        owner_quota=Quota(queued={"cpu": 40_000}, max_queued_jobs=3),
        weight=3,
    )
    assert queues.quotas == {"ann": Quota({"cpu": 20_000}), "*": Quota(max_queued_jobs=5)}
    assert queues.weight_of("ann", "gpu") == 6


@in_place()
async def test_queues_count_from_the_start_and_after_a_reload(place):
    file = Path(place.home.folder) / "lab.yaml"
    file.write_text(QUEUES)
    await place.close()
    place.settings = Settings(str(file))
    await place.open()
    names = Read(lambda context: sorted(context.queues.queues))
    assert await place.controller.ask(names) == ["gpu"]
    file.write_text("queues: {short: {}}")
    told = await place.settings.reload(place.controller.ask)
    assert told["changed"] == ["queues", "quotas"]
    assert await place.controller.ask(names) == ["short"]
