"""ASTRA-sim's inputs on our simulator: traces, a network and a system, put together. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from headway.errors import UsageError
from headway.sim.engine.fabric import Fabric
from headway.sim.engine.loop import Loop
from headway.sim.engine.network import Network
from headway.sim.execution.collective import Execution
from headway.sim.formats.astra_network import AstraNetwork, fabric_of
from headway.sim.formats.astra_system import AstraSystem
from headway.sim.formats.chakra import Trace
from headway.sim.traces.messages import CutThrough, Forwarding, Messenger, StoreAndForward
from headway.sim.traces.trace_phases import NamedAlgorithms
from headway.sim.traces.trace_plans import PlannedCollectives
from headway.sim.traces.trace_run import TraceResult, run_traces


def run_astra(
    traces: Sequence[Trace],
    network: AstraNetwork,
    system: AstraSystem | None = None,
    *,
    forwarding: Forwarding = Forwarding.CUT_THROUGH,
    plan: str | None = None,
    execution: Execution = Execution.PIECES,
    groups: Mapping[str, Sequence[int]] | None = None,
    rates_Bps: Mapping[str, float] | None = None,
) -> TraceResult:
    """Run one trace per NPU.

    Args:
        system: the system file; None: rings, one chunk, ASTRA-sim's other defaults.
        forwarding: how messages cross the network. STORE is ASTRA-sim's own, to the nanosecond.
        plan: collectives by our plans instead of the system's algorithms: a family, or empty for the fastest
            on this network. None: the system's algorithms.
        execution: of plans.
        groups: process groups by name, beside those that the traces name.
        rates_Bps: link name -> bytes per second, for links that differ from the file's.

    Raises:
        UsageError: a link, plan or node cannot be; plans with STORE.
    """
    fabric = _with_rates(fabric_of(network), rates_Bps or {})
    loop = Loop()
    fluid = Network(loop, fabric)
    messenger: Messenger = StoreAndForward(loop, fabric) if forwarding is Forwarding.STORE else CutThrough(fluid)
    system = system or AstraSystem()
    named = NamedAlgorithms(loop, messenger, network, system)
    planned = PlannedCollectives(fluid, named, execution=execution, plan=plan or "")
    if plan is not None and forwarding is Forwarding.STORE:
        raise UsageError("plans run on the fluid network only", where="--forwarding", hint="leave out one of both")
    result = run_traces(
        traces,
        loop=loop,
        fabric=fabric,
        messenger=messenger,
        collectives=planned if plan is not None else named,
        system=system,
        groups=groups,
    )
    return replace(result, plans=planned.plan_names)


def _with_rates(fabric: Fabric, rates_Bps: Mapping[str, float]) -> Fabric:
    for name in rates_Bps:
        if name not in fabric.link_index:
            raise UsageError(
                f"there is no {name!r}", where="--rate", hint=f"links are called like {fabric.links[0].name!r}"
            )
    links = tuple(replace(link, capacity_Bps=rates_Bps.get(link.name, link.capacity_Bps)) for link in fabric.links)
    return replace(fabric, links=links)
