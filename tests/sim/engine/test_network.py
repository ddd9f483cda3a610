"""Flows on a simulated network: times in closed form, callbacks, accounts."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest

from headway.errors import HeadwayError
from headway.sim.engine.fabric import star
from headway.sim.engine.loop import Loop
from headway.sim.engine.network import Flow, Network
from tests.sim.waterfill import links_of, network_of

INF = float("inf")


class Log:
    """When things were called."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.seen: list[tuple[str, float]] = []

    def note(self, name: str) -> Callable[[], None]:
        """A callback that notes `name`."""
        return lambda: self.seen.append((name, self.loop.now_s))

    def check(self, *expected: tuple[str, float]) -> None:
        """In this order, at these times to 1e-9."""
        assert [name for name, _ in self.seen] == [name for name, _ in expected]
        assert [when for _, when in self.seen] == pytest.approx([when for _, when in expected], rel=1e-9)


def test_one_bottleneck_is_shared_by_weight() -> None:
    loop, network = network_of(12.0)
    log = Log(loop)
    for name, weight, size in (("a", 1.0, 10.0), ("b", 2.0, 10.0), ("c", 3.0, 60.0)):
        network.start(0, 1, size, route=(0,), weight=weight, on_sent=log.note(name))
    loop.run()
    # 2, 4, 6 until b ends at 2.5; then 3, 9 until a ends at 2.5 + 5/3; then 12 for c.
    a_s = 2.5 + 5 / 3
    log.check(("b", 2.5), ("a", a_s), ("c", a_s + (60 - 15 - 9 * 5 / 3) / 12))


def test_equal_flows_are_exact_and_one_event() -> None:
    loop, network = network_of(7.0)
    log = Log(loop)
    for name in "abc":
        network.start(0, 1, 1.0, route=(0,), on_sent=log.note(name))
    loop.run()
    log.check(("a", 3 / 7), ("b", 3 / 7), ("c", 3 / 7))
    assert loop.events == 1
    assert network.solved == 3


def test_parking_lot() -> None:
    capacities = (10.0, 8.0, 6.0, 12.0)
    loop, network = network_of(*capacities)
    long = network.start(0, 1, INF, route=(0, 1, 2, 3))
    short = [network.start(0, 1, INF, route=(link,), weight=2.0) for link in range(4)]
    loop.run(until_s=1.0)
    assert network.rate_Bps(long) == pytest.approx(2.0, rel=1e-9)
    assert [network.rate_Bps(flow) for flow in short] == pytest.approx([8.0, 6.0, 4.0, 10.0], rel=1e-9)
    assert [network.full(link) for link in range(4)] == [True] * 4
    network.stop(short[2])
    loop.run(until_s=2.0)
    assert network.rate_Bps(long) == pytest.approx(8 / 3, rel=1e-9)
    full, flows = network.use()
    assert full.tolist() == [True, True, False, True]
    assert flows.tolist() == [2, 2, 1, 2]
    assert not network.full(2)


def test_caps() -> None:
    loop, network = network_of(10.0)
    capped = network.start(0, 1, INF, route=(0,), cap_Bps=1.0)
    free = network.start(0, 1, INF, route=(0,))
    loop.run(until_s=1.0)
    assert (network.rate_Bps(capped), network.rate_Bps(free)) == (1.0, 9.0)
    network.set_cap(capped, 7.0)
    loop.run(until_s=2.0)
    assert (network.rate_Bps(capped), network.rate_Bps(free)) == (5.0, 5.0)
    network.set_cap(free, 2.0)
    network.set_weight(capped, 0.5)
    loop.run(until_s=3.0)
    assert (network.rate_Bps(capped), network.rate_Bps(free)) == (7.0, 2.0)
    assert network.sent_bytes(capped) == pytest.approx(1 + 5 + 7)


def test_weight_of_a_running_flow() -> None:
    loop, network = network_of(10.0)
    a, b = (network.start(0, 1, INF, route=(0,)) for _ in range(2))
    loop.run(until_s=1.0)
    network.set_weight(a, 4.0)
    loop.run(until_s=2.0)
    assert [network.sent_bytes(flow) for flow in (a, b)] == pytest.approx([13.0, 7.0])


def test_classes_are_served_in_order() -> None:
    loop, network = network_of(10.0, 4.0)
    log = Log(loop)
    network.start(0, 1, 12.0, route=(0, 1), priority=0, on_sent=log.note("first"))
    network.start(0, 1, 36.0, route=(0,), priority=1, on_sent=log.note("second"))
    last = network.start(0, 1, 20.0, route=(0,), priority=7, on_sent=log.note("last"))
    loop.run(until_s=1.0)
    assert network.rate_Bps(last) == 0.0
    loop.run()
    # 4, 6, 0 until 3; 0, 10, 0 until 3 + 18/10; then 10.
    log.check(("first", 3.0), ("second", 4.8), ("last", 6.8))


def test_what_a_link_could_have_carried() -> None:
    loop, network = network_of(10.0, 4.0)
    network.start(0, 1, 30.0, route=(0,))
    loop.at(1.0, partial(network.set_capacity, 0, 2.0))
    loop.at(3.0, partial(network.set_capacity, 0, 10.0))
    loop.run(until_s=2.0)
    assert network.room_bytes(0) == pytest.approx(12)
    loop.run()
    assert network.room_bytes(0) == pytest.approx(30)
    assert network.carried_bytes(0) == pytest.approx(30)
    assert network.room_bytes(1) == pytest.approx(4 * loop.now_s)
    assert list(network.changed_links) == [0]


def test_capacity_that_changes_and_comes_back() -> None:
    loop, network = network_of(10.0)
    log = Log(loop)
    flow = network.start(0, 1, 50.0, route=(0,), on_sent=log.note("sent"))
    loop.at(1.0, lambda: network.set_capacity(0, 5.0))
    loop.at(2.0, lambda: network.set_capacity(0, 0.0))
    loop.run(until_s=7.0)
    assert network.sent_bytes(flow) == pytest.approx(15.0)
    assert network.rate_Bps(flow) == 0.0
    assert network.capacity_Bps(0) == 0.0
    network.set_capacity(0, 20.0)
    loop.run()
    log.check(("sent", 7.0 + 35 / 20))


def test_endless_flow_is_stopped_and_leaves_its_share() -> None:
    loop, network = network_of(10.0)
    log = Log(loop)
    endless = network.start(0, 1, INF, route=(0,), on_sent=log.note("never"))
    other = network.start(0, 1, 20.0, route=(0,), on_sent=log.note("other"))
    loop.at(1.0, lambda: network.stop(endless))
    loop.run()
    log.check(("other", 1.0 + 15 / 10))
    assert network.sent_bytes(endless) == pytest.approx(5.0)
    assert network.sent_bytes(other) == 20.0
    assert (endless.ended, endless.began_s, endless.ended_s) == (True, 0.0, 1.0)
    assert network.links_of(endless) == ()
    network.stop(endless)
    network.set_cap(endless, 1.0)
    assert network.rate_Bps(endless) == 0.0
    assert network.flows == 0


def test_latency_of_the_route_delays_the_arrival_only() -> None:
    loop, network = network_of(10.0, 10.0, latency_s=0.25)
    log = Log(loop)
    network.start(0, 1, 10.0, route=(0, 1), on_sent=log.note("sent"), on_done=log.note("done"))
    network.set_latency(0, 1.0)
    later = network.start(0, 1, INF, route=(0,))
    assert later.latency_s == 1.0
    network.stop(later)
    loop.run()
    log.check(("sent", 1.0), ("done", 1.5))


def test_latency_is_the_routers_routes_too() -> None:
    loop = Loop()
    network = Network(loop, star(4, 10.0, latency_s=0.25))
    assert network.start(0, 1, 1.0).latency_s == 0.5
    network.set_latency(0, 1.0)
    flow = network.start(0, 1, 1.0)
    assert flow.latency_s == 1.25
    assert network.links_of(flow) == (0, 5)


def test_marks_and_more_bytes_are_exact_and_solve_nothing() -> None:
    loop, network = network_of(10.0)
    log = Log(loop)
    flow = network.start(0, 1, 30.0, route=(0,), on_sent=log.note("sent"))
    network.start(0, 1, INF, route=(0,))
    for at_bytes in (20.0, 10.0, 30.0, 35.0, 41.0, 60.0):
        network.on_bytes(flow, at_bytes, log.note(f"{at_bytes:g}"))
    loop.run(until_s=1.0)
    solved = network.solved
    network.extend(flow, 11.0)
    loop.at(3.0, lambda: network.on_bytes(flow, 5.0, log.note("long past")))
    loop.run(until_s=8.0)
    assert network.solved == solved
    loop.run(until_s=20.0)
    log.check(("10", 2.0), ("long past", 3.0), ("20", 4.0), ("30", 6.0), ("35", 7.0), ("41", 41 / 5), ("sent", 41 / 5))
    assert network.solved == solved + 1
    assert flow.size_bytes == 41.0


def test_flow_extended_at_its_last_byte_goes_on() -> None:
    loop, network = network_of(10.0)
    log = Log(loop)
    flow = network.start(0, 1, 10.0, route=(0,), on_sent=log.note("sent"))
    network.on_bytes(flow, 10.0, lambda: network.extend(flow, 10.0))
    network.on_bytes(flow, 10.0, log.note("second of that byte"))
    loop.run()
    log.check(("second of that byte", 1.0), ("sent", 2.0))
    assert network.carried_bytes(0) == 20.0
    with pytest.raises(HeadwayError, match="has ended"):
        network.extend(flow, 1.0)
    with pytest.raises(HeadwayError, match="has ended"):
        network.on_bytes(flow, 1.0, lambda: None)


def test_mark_may_stop_its_flow() -> None:
    loop, network = network_of(10.0)
    log = Log(loop)
    flow = network.start(0, 1, 10.0, route=(0,), on_sent=log.note("never"))
    network.on_bytes(flow, 5.0, lambda: network.stop(flow))
    network.on_bytes(flow, 5.0, log.note("never either"))
    loop.run()
    log.check()
    assert (network.sent_bytes(flow), network.carried_bytes(0), loop.now_s) == (5.0, 5.0, 0.5)


def test_flows_of_no_bytes_and_of_no_links_take_no_time() -> None:
    loop, network = network_of(0.0)
    log = Log(loop)
    network.start(0, 0, 1e9, route=(), on_sent=log.note("no links"))
    network.start(0, 1, 0.0, route=(0,), on_sent=log.note("no bytes"), on_done=log.note("arrived"))
    slow = network.start(0, 0, 8.0, route=(), cap_Bps=4.0, on_sent=log.note("capped"))
    marked = network.start(0, 0, 10.0, route=())
    network.on_bytes(marked, 5.0, log.note("mark"))
    loop.run()
    log.check(("no bytes", 0.0), ("arrived", 0.0), ("no links", 0.0), ("mark", 0.0), ("capped", 2.0))
    assert network.sent_bytes(slow) == 8.0
    assert network.carried_bytes(0) == 0.0


def test_callbacks_start_and_stop_flows() -> None:
    loop, network = network_of(10.0)
    log = Log(loop)
    victims: list[Flow] = []

    def first_sent() -> None:
        log.note("first")()
        network.stop(victims[0])
        network.extend(victims[1], 5.0)
        network.start(0, 1, 5.0, route=(0,), on_sent=log.note("started inside"))

    network.start(0, 1, 10.0, route=(0,), on_sent=first_sent)
    victims += [network.start(0, 1, 10.0, route=(0,), on_sent=log.note(name)) for name in ("stopped", "extended", "d")]
    loop.run()
    log.check(("first", 4.0), ("d", 4.0), ("extended", 5.0), ("started inside", 5.0))
    assert network.sent_bytes(victims[0]) == pytest.approx(10.0)
    assert network.flows == 0


def test_rates_are_solved_once_for_an_instant() -> None:
    loop, network = network_of(10.0)

    def again() -> None:
        network.start(0, 1, 10.0, route=(0,))

    for _ in range(4):
        network.start(0, 1, 10.0, route=(0,), on_sent=again)
    loop.run()
    assert network.solved == 8
    assert loop.now_s == pytest.approx(8.0)


def test_only_flows_whose_rate_can_change_are_solved() -> None:
    loop, network = network_of(*[10.0] * 50, 1e6)
    for link in range(50):
        network.start(0, 1, INF, route=(link, 50))
    loop.run(until_s=1.0)
    before = network.solved
    network.start(0, 1, 1.0, route=(3, 50))
    loop.run(until_s=1.1)
    assert network.solved == before + 2
    loop.run(until_s=3.0)
    assert network.solved == before + 3


def test_tables_grow_while_flows_run() -> None:
    links = 40
    loop, network = network_of(*[float(links)] * links)
    flows = [network.start(0, 1, INF, route=(link,)) for link in range(links)]
    loop.run(until_s=1.0)
    flows += [network.start(0, 1, INF, route=tuple(range(links))) for _ in range(3)]
    flows += [network.start(0, 1, INF, route=(link,), priority=1) for link in range(links) for _ in range(20)]
    loop.run(until_s=2.0)
    expected = [links / 4] * (links + 3) + [0.0] * (20 * links)
    assert [network.rate_Bps(flow) for flow in flows] == pytest.approx(expected, rel=1e-9)
    for flow in flows[: links + 3]:
        network.stop(flow)
    loop.run(until_s=3.0)
    assert [network.rate_Bps(flow) for flow in flows[links + 3 :]] == pytest.approx([links / 20] * (20 * links))
    assert network.flows == 20 * links


def run_at_random(seed: int, events: int, *, looks: bool = False) -> tuple[Network, list[Flow]]:
    """Flows that take each other's place on a star, with changes of everything."""
    rng = random.Random(seed)
    hosts = 12
    loop = Loop()
    network = Network(loop, star(hosts, 10.0, latency_s=0.001))
    flows: list[Flow] = []

    def begin() -> None:
        if len(flows) >= events:
            return
        src, dst = rng.sample(range(hosts), 2)
        size = rng.choice([1.0, 2.0, rng.uniform(0.0, 5.0), 0.0])
        weight, priority = rng.choice([1.0, 3.0]), rng.randrange(2)
        flows.append(network.start(src, dst, size, weight=weight, priority=priority, on_sent=begin))
        if rng.random() < 0.1:
            network.extend(flows[-1], 1.0)
            network.on_bytes(flows[-1], 0.5, lambda: network.set_capacity(rng.randrange(hosts), rng.uniform(1.0, 20.0)))
        if rng.random() < 0.05:
            loop.after(0.5, partial(replace, flows[-1]))
        if looks:
            network.carried_bytes(src)
            network.sent_bytes(flows[-1])

    def replace(flow: Flow) -> None:
        if not flow.ended:
            network.stop(flow)
            begin()

    for _ in range(30):
        begin()
    loop.run()
    return network, flows


def test_bytes_are_kept_over_many_events() -> None:
    network, flows = run_at_random(1, 20_000)
    assert all(flow.ended for flow in flows)
    carried = sum(network.carried_bytes(link) for link in range(len(network.fabric.links)))
    assert carried == pytest.approx(2 * sum(network.sent_bytes(flow) for flow in flows), rel=1e-9)


def test_same_run_has_the_same_bits_and_looking_changes_none() -> None:
    def figures(seed: int, *, looks: bool = False) -> list[float]:
        network, flows = run_at_random(seed, 1000, looks=looks)
        ends = [when for flow in flows for when in (flow.began_s, flow.ended_s, network.sent_bytes(flow))]
        return [*ends, *(network.carried_bytes(link) for link in range(24))]

    assert figures(5) == figures(5) == figures(5, looks=True)
    assert figures(5) != figures(6)


@pytest.mark.parametrize(
    "call",
    [
        lambda network: network.start(0, 1, -1.0, route=(0,)),
        lambda network: network.start(0, 1, float("nan"), route=(0,)),
        lambda network: network.start(0, 1, 1.0, route=(0,), weight=0.0),
        lambda network: network.start(0, 1, 1.0, route=(0,), cap_Bps=0.0),
        lambda network: network.extend(network.start(0, 1, 1.0, route=(0,)), -1.0),
        lambda network: network.set_weight(network.start(0, 1, 1.0, route=(0,)), INF),
        lambda network: network.set_cap(network.start(0, 1, 1.0, route=(0,)), -1.0),
        lambda network: network.set_capacity(0, -1.0),
        lambda network: network.set_capacity(0, INF),
        lambda network: network.set_loss(0, 1.0),
    ],
)
def test_impossible_figures_are_errors(call: Callable[[Network], object]) -> None:
    with pytest.raises(HeadwayError, match="cannot be"):
        call(Network(Loop(), links_of(10.0)))


def test_lossy_link_limits_flows_that_cross_it() -> None:
    loop, network = network_of(1e9, 1e9, latency_s=0.01)
    crosses = network.start(0, 1, INF, route=(0,), cap_Bps=1e8)
    beside = network.start(0, 1, INF, route=(1,))
    loop.run(until_s=1.0)
    network.set_loss(0, 0.01)
    later = network.start(0, 1, INF, route=(0,))
    loop.run(until_s=2.0)
    limit = 1448 / 0.02 * 150**0.5
    assert [network.rate_Bps(flow) for flow in (crosses, beside, later)] == pytest.approx([limit, 1e9, limit])
    network.set_loss(0, 0.0)
    loop.run(until_s=3.0)
    assert network.rate_Bps(crosses) == 1e8
