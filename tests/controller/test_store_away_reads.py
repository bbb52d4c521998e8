"""Reading what was just changed while the store is away."""

import pytest

from controller_place import in_place
from gridhand import StoreUnavailable
from gridhand.controller.jobs import job_reader
from gridhand.core.errors import OutcomeUnknown


@in_place()
async def test_jobs_that_cannot_be_shown_are_not_called_unchanged(place, monkeypatch):
    """Before its client loses patience: it asks again by its op id."""
    monkeypatch.setattr(job_reader, "SURELY_S", 0.1)
    id = await place.submit()
    tries = []

    async def away(ids):
        tries.append(ids)
        raise StoreUnavailable("away")

    with monkeypatch.context() as broken:
        broken.setattr(place.controller, "find", away)
        with pytest.raises(OutcomeUnknown, match="away"):
            await place.controller.find_surely([id])
    assert tries
    [view] = await place.controller.find_surely([id])
    assert view.job.id == id
