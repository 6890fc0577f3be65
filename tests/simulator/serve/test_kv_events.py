"""KV events: what a KV-aware router hears of the replicas, in vLLM's messages."""

import asyncio

import httpx
import numpy as np
import pytest
from tiny_scenario import tiny_data

from forerun.errors import ForerunError
from simulator.running.build import build_run
from simulator.running.scenario import Scenario
from simulator.serve.app import Server
from simulator.serve.kv_events import KnownBlocks, token_id
from simulator.serve.live import Change, LiveFleet
from simulator.serve.tokens import block_hashes

zmq = pytest.importorskip("zmq")
msgpack = pytest.importorskip("msgpack")


def scenario_of(**changes):
    return Scenario(**tiny_data() | {"hardware": {"chip": "h100-sxm", "replicas": 2}} | changes)


def changes_of(*changes):
    return [Change(*change) for change in changes]


def test_blocks_of_one_prompt_are_one_event_with_their_tokens_and_parent():
    known = KnownBlocks(2)
    known.begin(0, [11, 12, 13], [1, 2, 3, 4, 5, 6, 7])
    first = known.events(changes_of(("stored", 0, 11), ("stored", 0, 12), ("stored", 1, 11)))
    assert first == {
        0: [["BlockStored", [11, 12], None, [1, 2, 3, 4], 2, None, "GPU", None]],
        1: [["BlockStored", [11], None, [1, 2], 2, None, "GPU", None]],
    }
    later = known.events(changes_of(("stored", 0, 13), ("removed", 0, 13), ("removed", 0, 12), ("stored", 0, 12)))
    assert later[0] == [
        ["BlockStored", [13], 12, [5, 6], 2, None, "GPU", None],
        ["BlockRemoved", [13, 12], "GPU"],
        ["BlockStored", [12], 11, [3, 4], 2, None, "GPU", None],
    ]


def test_a_lost_cache_is_one_event_and_nothing_stays_known_that_nobody_has():
    known = KnownBlocks(1)
    known.begin(0, [11, 12], [1, 2])
    known.events(changes_of(("stored", 0, 11), ("stored", 0, 12)))
    known.end(0)
    assert len(known) == 2
    assert known.events(changes_of(("cleared", 0, -1), ("cleared", 1, -1))) == {0: [["AllBlocksCleared"]]}
    assert len(known) == 0
    known.begin(0, [11], [1])
    known.end(0)
    assert len(known) == 0


def test_events_add_up_to_what_the_replicas_hold():
    """With so few blocks that they are evicted, whichever engine runs."""
    build = build_run(scenario_of(engine={"num_kv_blocks": 130, "max_num_seqs": 8}))
    fleet, known = LiveFleet(build, watch=True), KnownBlocks(build.main.limits.block_size)
    held = {0: set(), 1: set()}
    removed = 0
    for number in range(30):
        tokens = [1000 * (number % 7) + at for at in range(400)]
        hashes = block_hashes(tokens, build.main.limits.block_size)
        slot = fleet.submit(400, 3, hashes, at_s=fleet.now + 0.01)
        known.begin(slot, hashes, tokens)
        for _ in range(200):
            deliveries = fleet.advance(fleet.next_s)
            for replica, events in known.events(fleet.changes).items():
                for tag, *fields in events:
                    blocks = set(fields[0])
                    removed += tag == "BlockRemoved"
                    assert blocks.isdisjoint(held[replica]) if tag == "BlockStored" else blocks <= held[replica]
                    held[replica] = held[replica] | blocks if tag == "BlockStored" else held[replica] - blocks
            fleet.changes.clear()
            for delivery in deliveries:
                if delivery.ended:
                    known.end(delivery.slot)
            if not fleet.under_way:
                break
    assert removed
    assert all(0 < len(blocks) <= 130 for blocks in held.values())
    assert len(known) == len(held[0] | held[1])
    index = fleet.log.holders
    fleet._hashes.slots[0] = np.array(block_hashes(tokens, build.main.limits.block_size))
    leading = index.leading(0, [0, 1])
    assert max(leading) == sum(block in held[leading.index(max(leading))] for block in fleet._hashes.slots[0])


def test_a_subscriber_hears_the_blocks_of_a_prompt_of_token_numbers():
    prompt = list(range(500, 564))

    async def run():
        server = Server(scenario_of(), speed=100.0, kv_events="tcp://127.0.0.1:45557")
        context = zmq.Context()
        subscriber = context.socket(zmq.SUB)
        subscriber.setsockopt(zmq.SUBSCRIBE, b"kv@")
        for port in (45557, 45558):
            subscriber.connect(f"tcp://127.0.0.1:{port}")
        await asyncio.sleep(0.5)  # a subscription takes a moment; what is published before is lost
        server.pace.start()
        body = {"prompt": prompt, "max_tokens": 4, "ignore_eos": True}
        transport = httpx.ASGITransport(app=server.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://served") as client:
            for _ in range(2):
                assert (await client.post("/v1/completions", json=body)).status_code == 200
        heard = []
        while subscriber.poll(500):
            heard.append(subscriber.recv_multipart())
        server.stop()
        subscriber.close(linger=0)
        context.term()
        return heard

    heard = asyncio.run(run())
    assert {topic for topic, *_ in heard} == {f"kv@replica-{index}@llama-3.2-1b".encode() for index in (0, 1)}
    for topic in {topic for topic, *_ in heard}:
        of_replica = [(int.from_bytes(number, "big"), msgpack.unpackb(data)) for name, number, data in heard
                      if name == topic]  # fmt: skip
        assert [number for number, _ in of_replica] == list(range(len(of_replica)))
        events = [event for _, (at_s, events, rank) in of_replica for event in events]
        assert {event[0] for event in events} == {"BlockStored"}
        assert [token for event in events for token in event[3]][: len(prompt)] == prompt
        assert events[0][2] is None
        assert [event[1][0] for event in events] == [event[1][0] for event in events if event[4] == 16]
        assert [block for event in events for block in event[1]][:4] == block_hashes(prompt, 16)


@pytest.mark.parametrize(
    ("changes", "address", "says"),
    [
        ({"engine": {"enable_prefix_caching": False}}, "tcp://127.0.0.1:45561", "enable_prefix_caching is off"),
        ({}, "127.0.0.1:45561", "an address such as"),
        ({}, "tcp://127.0.0.1:65536", "an address such as"),
        ({}, "tcp://203.0.113.7:45561", "45561: "),
    ],
)
def test_an_address_or_a_scenario_without_events_is_refused(changes, address, says):
    with pytest.raises(ForerunError, match=says):
        Server(scenario_of(**changes), kv_events=address)


def test_a_word_has_the_same_number_every_time():
    assert token_id("the") == token_id("the") != token_id("then")
    assert token_id(17) == 17


def test_a_live_fleet_scrapes_for_as_long_as_it_runs(monkeypatch):
    """A simulated run ends after so many scrapes with an error; a server does not."""
    from simulator.serving.fleet import scored

    monkeypatch.setattr(scored, "MOST_SCRAPES", 20)
    router = {"scorers": [{"scorer": "queue"}], "scrape_interval_s": 0.05}
    fleet = LiveFleet(build_run(scenario_of(engine={"routing": "scored"}, router=router)))
    fleet.advance(10.0)
    fleet.submit(100, 2, at_s=10.0)
    assert [delivery.ended for delivery in fleet.advance(20.0)] == [False, True]
