"""What every engine promises: all may be asked again, and nothing is run or lost twice."""

ONE, TWO = ("1", 1), ("2", 1)


def test_a_node_is_described_before_its_engine_is_open(contract, tools):
    async def run(box):
        async with tools.opened(box) as (engine, sink, known):
            assert known == ([], [])
            [node] = sink.nodes
            assert node["capacity"]["cpu"] >= 10_000
            assert "pid" in engine.facts()

    contract(run)


def test_what_is_started_is_told_of_and_so_is_its_end(contract, tools):
    async def run(box):
        async with tools.opened(box) as (engine, sink, _):
            await engine.start([box.order("1"), box.order("2")])
            fact = await sink.spawn_of(ONE)
            assert (fact.fence, fact.state) == ("a1-1", "running")
            await sink.spawn_of(TWO)
            box.finish(ONE, 7)
            end = await sink.end_of(ONE)
            assert (end.reason, end.code) == ("exit", 7)
            assert sink.keys(sink.ended_facts) == [ONE]

    contract(run)


def test_what_is_known_is_not_started_again_be_it_running_or_over(contract, tools):
    async def run(box):
        async with tools.opened(box) as (engine, sink, _):
            order = box.order("1")
            await engine.start([order])
            await engine.start([order, order])
            await sink.spawn_of(ONE)
            box.finish(ONE, 3)
            await sink.end_of(ONE)
            told = len(sink.ended_facts)
            await engine.start([order])
            await sink.until(lambda: len(sink.ended_facts) > told)
            assert sink.ended_facts[-1].end.code == 3
            assert box.started(ONE) == 1

    contract(run)


def test_an_end_is_told_to_who_comes_after_until_it_is_forgotten(contract, tools):
    async def run(box):
        async with tools.opened(box) as (engine, sink, _):
            await engine.start([box.order("1"), box.order("2")])
            await sink.spawn_of(TWO)
        box.finish(ONE, 5)
        async with tools.opened(box, 2) as (engine, sink, known):
            sink.ended(known.ended)
            assert (await sink.end_of(ONE)).code == 5
        async with tools.opened(box, 3) as (engine, sink, known):
            assert sink.keys(known.ended) == [ONE]
            assert sink.keys(known.running) == [TWO]
            assert known.running[0].fence == "a1-2"
            await engine.forget([ONE, TWO, ("77", 1)])  # what runs is not forgotten
        async with tools.opened(box, 4) as (_, sink, known):
            assert known.ended == []
            assert sink.keys(known.running) == [TWO]

    contract(run)


def test_what_is_stopped_ends_for_the_reason_it_was_given(contract, tools):
    async def run(box):
        async with tools.opened(box) as (engine, sink, _):
            await engine.start([box.order("1")])
            await sink.spawn_of(ONE)
            await engine.stop(ONE, "cancelled", 100)
            await engine.stop(ONE, "cancelled", 100)
            assert (await sink.end_of(ONE)).reason == "cancelled"

    contract(run)


def test_what_the_node_does_not_know_is_told_to_have_ended_when_it_is_stopped(contract, tools):
    async def run(box):
        async with tools.opened(box) as (engine, sink, _):
            await engine.stop(("9", 2), "client_gone", 100)
            end = await sink.end_of(("9", 2))
            assert end.reason == "client_gone"
            assert end.message

    contract(run)


def test_a_signal_reaches_what_runs_and_nothing_else(contract, tools):
    async def run(box):
        async with tools.opened(box) as (engine, sink, _):
            await engine.start([box.order("1")])
            await sink.spawn_of(ONE)
            assert await engine.signal(ONE, 18) is True
            assert await engine.signal(TWO, 18) is False

    contract(run)


def test_an_epoch_that_is_over_is_refused_and_takes_nothing(contract, tools):
    async def run(box):
        async with tools.opened(box, 5) as (engine, sink, _):
            await engine.start([box.order("1")])
            await sink.spawn_of(ONE)
        assert await box.remembered() == (5, [ONE])
        assert await box.refused(4)
        async with tools.opened(box, 5) as (_, sink, known):
            assert sink.keys(known.running) == [ONE]

    contract(run)


def test_a_log_that_is_not_there_is_empty(contract, tools):
    async def run(box):
        async with tools.opened(box) as (engine, _, _):
            assert await engine.read_log("/no/such/file", 0, 100) == []
            assert await engine.log_size("/no/such/file") == 0

    contract(run)
