"""Execution traces on the simulator: order, engines, messages, groups, collectives by algorithms and by plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from headway.errors import UsageError
from headway.sim.execution.collective import Execution
from headway.sim.formats.astra_network import AstraNetwork, Block, Dimension
from headway.sim.formats.astra_system import AstraSystem, Policy
from headway.sim.formats.chakra import CommKind, NodeKind, Trace, TraceNode
from headway.sim.traces.astra import run_astra
from headway.sim.traces.message_schedules import Exchange, Messages, direct, double_binary_tree, halving_doubling, ring
from headway.sim.traces.messages import Forwarding
from headway.sim.traces.trace_run import TraceResult

GBPS = 1e9
PLAIN = AstraSystem(endpoint_s=0.0)


def star(npus: int, latency_s: float = 0.0) -> AstraNetwork:
    return AstraNetwork("star", (Dimension(Block.SWITCH, npus, GBPS, latency_s),))


def comp(number: int, seconds: float, *after: int, cpu: bool = False) -> TraceNode:
    return TraceNode(number, f"comp{number}", NodeKind.COMP, after, duration_s=seconds, cpu=cpu)


def coll(number: int, comm: CommKind, size_bytes: int, *after: int, group: str = "") -> TraceNode:
    return TraceNode(number, f"coll{number}", NodeKind.COMM_COLL, after, comm=comm, size_bytes=size_bytes, group=group)


def send(number: int, dst: int, size_bytes: int, *after: int, tag: int = 0) -> TraceNode:
    return TraceNode(number, "send", NodeKind.COMM_SEND, after, size_bytes=size_bytes, dst=dst, tag=tag)


def recv(number: int, src: int, size_bytes: int, *after: int, tag: int = 0) -> TraceNode:
    return TraceNode(number, "recv", NodeKind.COMM_RECV, after, size_bytes=size_bytes, src=src, tag=tag)


def run(*npus: Sequence[TraceNode], system: AstraSystem = PLAIN, **options: object) -> TraceResult:
    traces = [Trace(f"t.{npu}.et", tuple(nodes)) for npu, nodes in enumerate(npus)]
    return run_astra(traces, star(len(npus)), system, **options)  # type: ignore[arg-type]


def spans(result: TraceResult, npu: int = 0) -> dict[int, tuple[float, float]]:
    return {each.node.id: (each.start_s, each.end_s) for each in result.nodes if each.npu == npu}


def test_engines_have_one_node_at_a_time_and_work_beside_each_other() -> None:
    nodes = [comp(0, 2.0), comp(1, 1.0), comp(2, 5.0, cpu=True), comp(3, 1.0, 0, cpu=True), comp(4, 1.0, 0)]
    result = run(nodes, [])
    assert spans(result) == {
        0: (0, 2),
        1: (2, 3),
        4: (3, 4),
        2: (0, 5),
        3: (5, 6),
    }
    assert result.ends_s == [6, 0]
    assert result.compute_s == [4, 0]


def test_a_message_ends_at_both_when_it_has_arrived() -> None:
    result = run([comp(0, 1.0), send(1, 1, 10**9, 0)], [recv(0, 0, 10**9), comp(1, 1.0), comp(2, 0.5, 0, 1)])
    assert spans(result)[1] == pytest.approx((1.0, 2.0))
    assert spans(result, 1)[0] == pytest.approx((0.0, 2.0))
    assert result.end_s == pytest.approx(2.5)
    assert result.carried_bytes == {
        "uplink of npu0": pytest.approx(1e9),
        "downlink of npu0": 0,
        "uplink of npu1": 0,
        "downlink of npu1": pytest.approx(1e9),
    }


def test_messages_are_matched_by_tag_and_order() -> None:
    result = run(
        [send(0, 1, 10**9, tag=7), send(1, 1, 10**9, 0, tag=8)],
        [recv(0, 0, 10**9, tag=8), recv(1, 0, 10**9, tag=7), comp(2, 1.0, 1)],
    )
    assert spans(result, 1)[1][1] == pytest.approx(1.0)
    assert spans(result, 1)[0][1] == pytest.approx(2.0)
    early = run([send(0, 1, 10**9)], [comp(0, 3.0), recv(1, 0, 10**9, 0)])
    assert spans(early, 1)[1] == (3.0, 3.0)


@pytest.mark.parametrize(
    ("npus", "line"),
    [
        ([[send(0, 1, 8)], [recv(0, 0, 9)]], "t.1.et: node 0: expects 9 bytes, and 8 were sent"),
        ([[], [recv(0, 0, 9)]], "t.1.et: node 0: never ends: what it waits for does not come"),
        ([[send(0, 0, 8)], []], "t.0.et: node 0: there is no way from NPU 0 to NPU 0"),
        ([[send(0, 2, 8)], []], "t.0.et: node 0: there is no way from NPU 0 to NPU 2"),
        ([[replace(send(0, 1, 8), src=1)], []], "t.0.et: node 0: comm_src: is 1 in the file of NPU 0"),
        (
            [[coll(0, CommKind.ALL_REDUCE, 8)], [coll(4, CommKind.ALL_GATHER, 8)]],
            "t.1.et: node 4: calls all_gather of 8 bytes where t.0.et: node 0 calls all_reduce of 8 bytes",
        ),
        ([[coll(0, CommKind.ALL_REDUCE, 8)], []], "t.0.et: node 0: never ends"),
        ([[coll(0, CommKind.BROADCAST, 8)], []], "t.0.et: node 0: no broadcast runs here, and it has no recorded"),
        (
            [[coll(0, CommKind.ALL_REDUCE, 8, group="9")], []],
            "t.0.et: node 0: there is no process group '9' (give its members with --groups)",
        ),
        ([[coll(0, CommKind.ALL_REDUCE, 8, group="1")], []], "t.0.et: node 0: NPU 0 is not in process group '1'"),
        ([[coll(0, CommKind.ALL_REDUCE, 8, group="2")], []], "t.0.et: node 0: process group '2' names NPUs twice"),
        ([[TraceNode(0, "", NodeKind.MEM_LOAD)], []], "t.0.et: node 0: there is no model of remote memory"),
    ],
)
def test_traces_that_do_not_fit_together_are_one_line(npus: list[list[TraceNode]], line: str) -> None:
    with pytest.raises(UsageError) as error:
        run(*npus, groups={"1": (1,), "2": (0, 0)})
    assert str(error.value).startswith(line)


def test_as_many_traces_as_npus() -> None:
    with pytest.raises(UsageError, match="1 traces for 2 NPUs"):
        run_astra([Trace("t.0.et", ())], star(2))


def test_a_collective_begins_at_each_npu_when_that_gets_there() -> None:
    late = run([coll(0, CommKind.ALL_REDUCE, 2 * 10**9)], [comp(0, 5.0), coll(1, CommKind.ALL_REDUCE, 2 * 10**9, 0)])
    assert spans(late)[0] == pytest.approx((0.0, 7.0))  # its first message waited there since 1 s
    assert spans(late, 1)[1][1] == pytest.approx(7.0)


def test_groups_run_beside_each_other_and_in_order_in_themselves() -> None:
    whole, left = coll(1, CommKind.ALL_GATHER, 10**9, 0), coll(0, CommKind.ALL_GATHER, 10**9, group="1")
    right = replace(left, group="2")
    result = run(*[[left, whole]] * 2, *[[right, whole]] * 2, groups={"1": (0, 1), "2": (2, 3)})
    assert [spans(result, npu)[0][1] for npu in range(4)] == pytest.approx([1.0] * 4)
    assert result.end_s == pytest.approx(4.0)
    named = Trace("t.0.et", (coll(0, CommKind.ALL_GATHER, 10**9, group="3"),), {"3": ()})
    assert run_astra([named, named], star(2), PLAIN).end_s == pytest.approx(1.0)


def test_broadcasts_take_what_was_recorded_and_metadata_nothing() -> None:
    node = replace(coll(1, CommKind.BROADCAST, 8), duration_s=3.0, after=(0,))
    result = run(*[[TraceNode(0, "", NodeKind.METADATA), node]] * 2)
    assert result.end_s == 3.0


def test_replay_and_the_roofline() -> None:
    node = replace(comp(0, 4.0), ops=6e12, tensor_bytes=1e12)
    memory = replace(PLAIN, roofline=True, peak_per_s=6e12, memory_Bps=0.5e12)
    assert run([node], []).end_s == 4.0
    assert run([node], [], system=memory).end_s == pytest.approx(2.0)
    assert run([node], [], system=replace(memory, memory_Bps=2e12)).end_s == pytest.approx(1.0)
    assert run([replace(node, cpu=True)], [], system=memory).end_s == 4.0
    assert run([replace(node, tensor_bytes=0)], [], system=memory).end_s == 0.0
    assert run([comp(0, 0.0)], []).end_s == 1e-9
    replayed = replace(PLAIN, replay=True)
    alone = replace(coll(0, CommKind.ALL_REDUCE, 8), duration_s=2.0)
    assert run([alone], [TraceNode(0, "", NodeKind.MEM_LOAD, duration_s=1.0)], system=replayed).ends_s == [2.0, 1.0]


def test_whose_chunks_go_first() -> None:
    """Two collectives at once, the one that the CPU calls before the other: it takes an engine of its own."""
    big = replace(coll(0, CommKind.ALL_GATHER, 8 * 10**9), cpu=True, group="1")
    small = replace(coll(1, CommKind.ALL_GATHER, 10**9), group="1", priority=5)
    ends = {}
    for policy in Policy:
        system = replace(PLAIN, splits=8, policy=policy)
        result = run(*[[big, small]] * 2, system=system, groups={"1": (0, 1)})
        ends[policy] = spans(result)[1][1]
    assert ends[Policy.FIFO] == pytest.approx(9.0)
    assert ends[Policy.LIFO] == ends[Policy.EXPLICIT] == pytest.approx(2.0)


@pytest.mark.parametrize("execution", list(Execution))
def test_plans_in_closed_form(execution: Execution) -> None:
    """A direct all-reduce moves 2(n-1)/n of the vector over each link; nothing beside the network is charged."""
    nodes = [coll(0, CommKind.ALL_REDUCE, 4 * 10**6)]
    result = run(*[nodes] * 4, plan="direct", execution=execution)
    assert result.plans == ("direct",)
    assert result.end_s == pytest.approx(2 * 3 / 4 * 4e6 / GBPS, rel=0.35)
    assert result.end_s >= 2 * 3 / 4 * 4e6 / GBPS * (1 - 1e-9)
    assert sum(result.carried_bytes.values()) == pytest.approx(4 * 2 * 2 * 3 / 4 * 4e6)


def test_plans_wait_for_late_ranks_and_carry_what_algorithms_cannot() -> None:
    late = run([coll(0, CommKind.ALL_REDUCE, 10**6)], [comp(0, 5.0), coll(1, CommKind.ALL_REDUCE, 10**6, 0)], plan="")
    assert 5.0 < late.end_s < 5.01
    odd = run(*[[coll(0, CommKind.REDUCE_SCATTER, 1001)]] * 3, plan="ring")
    assert 0 < odd.end_s < 1e-5
    sent = run(*[[coll(0, CommKind.BROADCAST, 10**6)]] * 3, plan="")
    assert sent.end_s >= 1e-3 * (1 - 1e-9)
    swapped = run(*[[coll(0, CommKind.ALL_TO_ALL, 10**9)]] * 2, plan="")
    assert swapped.end_s == pytest.approx(0.5)
    with pytest.raises(UsageError, match="is no plan"):
        run(*[[coll(0, CommKind.ALL_REDUCE, 8)]] * 2, plan="snake")
    with pytest.raises(UsageError, match="fluid network only"):
        run([], [], plan="", forwarding=Forwarding.STORE)


def test_the_fastest_plan_is_no_slower_than_any_family() -> None:
    nodes = [coll(0, CommKind.ALL_REDUCE, 10**6)]
    times = {plan: run(*[nodes] * 8, plan=plan).end_s for plan in ("", "ring", "direct", "double-tree", "star")}
    assert times[""] == pytest.approx(min(times.values()))


def test_a_run_is_the_same_every_time() -> None:
    nodes = [comp(0, 1e-3), coll(1, CommKind.ALL_REDUCE, 10**6, 0), coll(2, CommKind.ALL_TO_ALL, 10**5)]
    assert run(*[nodes] * 4) == run(*[nodes] * 4)


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("exchange", list(Exchange))
def test_schedules_deliver_what_they_owe(exchange: Exchange, size: int) -> None:
    """Every rank receives what the collective owes it, and no message waits for one that its sender does not get."""
    owed = {
        Exchange.ALL_REDUCE: 2 * (size - 1) / size,
        Exchange.ALL_GATHER: size - 1.0,
        Exchange.REDUCE_SCATTER: (size - 1) / size,
        Exchange.ALL_TO_ALL: (size - 1) / size,
    }[exchange]
    whole: list[tuple[Messages, float]] = [(direct(exchange, size), owed), (direct(exchange, size, 1), owed)]
    relayed = (size - 1) / 2 if exchange is Exchange.ALL_TO_ALL else owed
    whole += [(ring(exchange, size), relayed), (ring(exchange, size, -1), relayed)]
    if exchange is not Exchange.ALL_TO_ALL:
        whole.append((halving_doubling(exchange, size), owed))
    for messages, expected in whole:
        received = [sum(each.part for each in messages if each.dst == rank) for rank in range(size)]
        assert received == pytest.approx([expected] * size)
    trees = (
        [double_binary_tree(exchange, size, mirrored) for mirrored in (False, True)]
        if exchange is Exchange.ALL_REDUCE
        else []
    )
    for messages in [each for each, _ in whole] + trees:
        for index, each in enumerate(messages):
            assert each.src != each.dst
            assert all(messages[before].dst == each.src for before in each.after)
            assert all(before < index for before in each.after) or messages in trees
