"""A plan on the simulated network, carried out in one of three ways. Pure.

| execution | what it is | cost of one operation |
| --- | --- | --- |
| PIECES | `collectives.executor`: pieces over one connection per pair, windows, dependencies | messages |
| ROUNDS | `collectives.rounds`: in each round a rank waits for all of its transfers | transfers |
| STREAMS | a fluid: each pair's whole load at once, in step, and `predict`'s fill at the end | pairs |

PIECES is what a live job does, and what agrees with the lab. STREAMS is its limit for small pieces, and what serves
thousands of hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from headway.collectives.chunking import LOCAL_BPS, chunk_bytes_for
from headway.collectives.plan import Collective, Plan
from headway.collectives.predict import DEFAULT_COSTS, CostModel
from headway.errors import HeadwayError
from headway.sim.engine.network import Network
from headway.sim.execution.host_model import DEFAULT_HOST, HostModel
from headway.sim.execution.pieces import PieceRun
from headway.sim.execution.rounds import RoundRun
from headway.sim.execution.running import Call, KeyOf, OnDone, OnFlow, OnRank, Running
from headway.sim.execution.streams import StreamRun


class Execution(Enum):
    """How a plan is carried out; see the module's docstring."""

    PIECES = "pieces"
    ROUNDS = "rounds"
    STREAMS = "streams"


_RUNS: dict[Execution, type[Running]] = {
    Execution.PIECES: PieceRun,
    Execution.ROUNDS: RoundRun,
    Execution.STREAMS: StreamRun,
}


def start(
    network: Network,
    plan: Plan,
    collective: Collective,
    size_bytes: int,
    *,
    hosts: Sequence[int],
    execution: Execution,
    ready: Sequence[float] | None = None,
    weight: float = 1.0,
    priority: int = 0,
    key: int | KeyOf = 0,
    seed: int = 0,
    costs: CostModel = DEFAULT_COSTS,
    host: HostModel = DEFAULT_HOST,
    chunk_bytes: int | None = None,
    element_bytes: int | None = None,
    on_done: OnDone | None = None,
    on_rank: OnRank | None = None,
    on_flow: OnFlow | None = None,
) -> Running:
    """Begin one operation; returns its handle, with live weights and what it has sent.

    Args:
        size_bytes: the whole vector (n blocks in a reduce-scatter or an all-gather).
        hosts: rank -> host of the network's fabric.
        ready: when each rank may begin, on the clock; past times mean now, infinity: not before `Running.begin`.
            None: all now.
        weight, priority: of each of its flows; see `Network.start`.
        key: of the operation's connections, from which each pair's is made; or a function of (src, dst) that gives
            it. The same key means the same ways through the network.
        seed: of the pauses in `host`; the key and the clock go into them too.
        costs: of messages. Latency between hosts is the fabric's.
        host: what the ends of connections add, in PIECES.
        chunk_bytes: the largest piece; None: what the executor chooses on links of the fastest host's rate. STREAMS
            takes 0 too: pieces without size, so that only latency fills the pipeline.
        element_bytes: pieces are whole elements of this size; None: 4, or 1 where the vector does not divide by 4.
        on_done: called once, at the end of the last rank, with each rank's end.
        on_rank: called with (rank, end) at each rank's end; a rank may begin its next operation then.
        on_flow: called with (src, dst, flow) for each flow that it begins; in PIECES a connection that had nothing to
            send begins a new one.

    PlanError: plan and hosts differ in number, or the vector does not divide into blocks.
    """
    if element_bytes is None:
        element_bytes = 4 if size_bytes % (4 * plan.size) == 0 else 1
    if chunk_bytes is None:
        link_Bps = link_rate_Bps(network, hosts)
        chunk_bytes = chunk_bytes_for(plan, collective, size_bytes, element_bytes, link_Bps)
    if chunk_bytes < (0 if execution is Execution.STREAMS else 1):
        raise HeadwayError(f"pieces of {chunk_bytes} bytes cannot be")
    call = Call(
        network=network,
        plan=plan,
        collective=collective,
        size_bytes=size_bytes,
        hosts=tuple(hosts),
        chunk_bytes=chunk_bytes,
        element_bytes=element_bytes,
        weight=weight,
        priority=priority,
        key=key,
        seed=seed,
        costs=costs,
        host=host,
        on_done=on_done,
        on_rank=on_rank,
        on_flow=on_flow,
    )
    running = _RUNS[execution](call, ready)
    running.launch()
    return running


def link_rate_Bps(network: Network, hosts: Sequence[int]) -> float:
    """The rate for which pieces are chosen: the fastest first link of the hosts, as built."""
    used = sorted(set(hosts))
    if len(used) < 2:
        return LOCAL_BPS
    fabric = network.fabric
    first = [fabric.router.route(host, used[0] if host != used[0] else used[1], 0) for host in used]
    rates = [fabric.links[route[0]].capacity_Bps for route in first if route]
    return max(rates, default=LOCAL_BPS)
