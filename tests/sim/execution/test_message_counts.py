"""How many messages an operation takes in pieces."""

from __future__ import annotations

import pytest

from headway.cluster.model import star as star_cluster
from headway.collectives.pieces import cut
from headway.collectives.plan import Collective
from headway.errors import UsageError
from headway.sim.engine.fabric import star
from headway.sim.engine.loop import Loop
from headway.sim.engine.network import Network
from headway.sim.execution.collective import Execution, start
from headway.sim.execution.message_counts import MOST_MESSAGES, check_job, message_count
from headway.sim.run import simulate
from tests.sim.operations import plan_for
from tests.sim.scenarios import job, scenario_of


@pytest.mark.parametrize("name", ["ring", "direct", "double tree", "chain"])
@pytest.mark.parametrize("collective", [Collective.ALL_REDUCE, Collective.ALL_GATHER])
def test_it_is_what_the_plan_is_cut_into(name: str, collective: Collective) -> None:
    plan, size_bytes, chunk_bytes = plan_for(4, name, 1, collective), 4_000_000, 65536
    pieces = cut(plan, collective, size_bytes, 4, chunk_bytes)
    halves = int(collective.reduces) + int(collective.spreads)
    assert message_count(plan, collective, size_bytes, chunk_bytes) == pieces.count * 3 * halves


def test_a_job_with_too_many_is_refused_before_it_runs_with_its_name_and_phase() -> None:
    scenario = scenario_of(job("big", {"compute": "1s"}, {"all_reduce": "100000000TB"}))
    with pytest.raises(UsageError, match=r"^job big: loop.1.all_reduce: .*messages in pieces.*--execution streams"):
        simulate(scenario)
    assert simulate(scenario, execution=Execution.STREAMS).end_s > 0


def test_few_messages_pass() -> None:
    for size in ("1GB", "100GB"):
        check_job(scenario_of(job("a", {"all_reduce": size})).jobs[0], star_cluster(4, 25e6))


def test_an_operation_with_too_many_is_refused_whoever_asks() -> None:
    plan = plan_for(4, "ring", 1, Collective.ALL_REDUCE)
    with pytest.raises(UsageError, match=r"all_reduce of .* bytes by ring: .* messages"):
        start(
            Network(Loop(), star(4, 1e9)), plan, Collective.ALL_REDUCE, MOST_MESSAGES * 4, hosts=range(4),
            execution=Execution.PIECES, chunk_bytes=4,
        )  # fmt: skip
