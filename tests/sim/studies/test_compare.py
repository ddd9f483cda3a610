"""Plans side by side: what is predicted, simulated and bound belongs together."""

from __future__ import annotations

import pytest

from headway.collectives.plan import Collective
from headway.errors import UsageError
from headway.lab.files import load_scenario, parse_scenario
from headway.sim.execution.collective import Execution
from headway.sim.studies.compare import PLANS, Compared, check_asked, compare

SIZE = 4_000_000


def rows_of(scenario: str, *plans: str, size_bytes: int = SIZE) -> dict[str, Compared]:
    asked = plans or PLANS
    return {row.asked: row for row in compare(load_scenario(scenario), asked, Collective.ALL_REDUCE, [size_bytes])}


def test_congestion_is_in_force_and_named() -> None:
    rows = rows_of("star8-udp75-down")
    assert set(rows) == set(PLANS) - {"two-level"}
    ring = rows["ring"]
    assert ring.bottleneck == "downlink of host3 at 47.82 Mbit/s"
    assert ring.busiest.startswith("downlink of host3, ")
    assert "downlink of host3 holds the all-reduce back" in ring.blame[0]
    assert ring.simulated_s == pytest.approx(ring.predicted_s, rel=0.05)
    # A quarter of the downlink takes 2 * 7/8 of the vector in a ring, and one vector at the least.
    assert ring.limit == pytest.approx(8 / 14, rel=0.02)
    assert rows["packing"].simulated_s < 0.65 * ring.simulated_s
    assert all(row.limit is not None and row.limit <= 1 for row in rows.values())
    assert [row.asked for row in rows.values() if row.best] == [
        row.asked for row in rows.values() if row.simulated_s == min(r.simulated_s for r in rows.values())
    ]
    assert ring.algbw_Bps == SIZE / ring.simulated_s


def test_an_idle_network_blames_nobody() -> None:
    ring = rows_of("star8", "ring")["ring"]
    assert ring.blame == ()
    assert ring.best
    assert ring.limit is not None
    assert ring.limit > 0.9


def test_events_hold_during_the_whole_operation_whatever_their_times() -> None:
    data: dict[str, object] = {
        "name": "later",
        "hosts": 4,
        "access": "100Mbit",
        "events": [
            {"id": "a", "type": "load", "target": "host1", "udp": "50%", "start": "50s", "on": "1ms", "off": "9s"}
        ],
    }
    (row,) = compare(parse_scenario(data, where="x"), ["ring"], Collective.ALL_REDUCE, [SIZE])
    data["events"] = []
    (idle,) = compare(parse_scenario(data, where="x"), ["ring"], Collective.ALL_REDUCE, [SIZE])
    assert row.simulated_s == pytest.approx(2 * idle.simulated_s, rel=0.05)


def test_tcp_load_does_not_move_the_limit() -> None:
    assert rows_of("star8-tcp-down", "ring")["ring"].limit_s == rows_of("star8", "ring")["ring"].limit_s


def test_racks_have_a_plan_that_a_star_lacks() -> None:
    assert rows_of("rack2x4", "ring", "two-level")["two-level"].plan.startswith("two-level")


def test_every_execution_is_another_run() -> None:
    scenario = load_scenario("star8-udp50-down")
    times = {
        next(iter(compare(scenario, ["double-tree"], Collective.ALL_REDUCE, [SIZE], execution=how))).simulated_s
        for how in Execution
    }
    assert len(times) == len(Execution)


@pytest.mark.parametrize(
    ("plans", "collective", "message"),
    [
        (["rign"], Collective.ALL_REDUCE, "--plans: 'rign' is no plan"),
        (["double-tree"], Collective.ALL_GATHER, "--plans: double-tree does not carry all_gather"),
        (["ring"], Collective.BROADCAST, "--plans: ring does not carry broadcast"),
    ],
)
def test_what_no_plan_does_is_refused(plans: list[str], collective: Collective, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_asked(plans, collective)


@pytest.mark.parametrize("collective", list(Collective))
def test_every_collective_has_plans(collective: Collective) -> None:
    names = ["idle", "react", "packing"]
    check_asked(names, collective)
    rows = list(compare(load_scenario("star8-udp50-up"), names, collective, [SIZE]))
    assert len(rows) == 3
    assert all(row.limit is not None and 0 < row.limit <= 1 for row in rows)


def test_predictions_over_several_paths_are_marked() -> None:
    rows = rows_of("rack2x4-slow-uplink", "ring", "two-level")
    assert all(row.several_paths for row in rows.values())
    assert rows["ring"].simulated_s > 2 * rows["ring"].predicted_s
    assert not rows_of("star8", "ring")["ring"].several_paths


@pytest.mark.parametrize(
    ("network", "several"),
    [
        ({"racks": {"racks": 2, "spines": 1, "uplink": "100Mbit"}}, False),
        ({"racks": {"racks": 1, "spines": 2, "uplink": "100Mbit"}}, False),
        ({"racks": {"racks": 2, "spines": 2, "uplink": "100Mbit"}}, True),
        ({"fat_tree": {"k": 4}}, True),
        ({"fat_tree": {"k": 2}, "hosts": 2}, False),
    ],
)
def test_paths_are_several_where_flows_can_choose(network: dict[str, object], several: bool) -> None:
    scenario = parse_scenario({"name": "x", "hosts": 4, "access": "100Mbit", **network}, where="x")
    (row,) = compare(scenario, ["ring"], Collective.ALL_REDUCE, [SIZE], execution=Execution.STREAMS)
    assert row.several_paths is several
