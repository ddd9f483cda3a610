"""A sweep's file: what cells it makes, and that what is wrong is told with file and field before anything runs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from headway.errors import UsageError
from headway.sim.execution.collective import Execution
from headway.sim.studies.sweep import Sweep, arguments_of, label, load_sweep, parse_sweep, put, scenario_of

SCENARIO: dict[str, object] = {
    "name": "small",
    "hosts": 4,
    "access": "100Mbit",
    "events": [{"id": "busy", "type": "load", "target": "host1", "direction": "down", "udp": "50%"}],
    "jobs": [{"name": "train", "hosts": 4, "iterations": 2, "loop": [{"compute": "1ms"}, {"all_reduce": "1MB"}]}],
}


def sweep(axes: Mapping[str, object], **more: object) -> Sweep:
    data = {"scenario": copy.deepcopy(SCENARIO), "axes": dict(axes), **more}
    return parse_sweep(data, base=Path(), where="s.yaml", name="s")


def test_cells_are_the_product_of_the_axes() -> None:
    made = sweep({"access": ["100Mbit", "200Mbit"], "jobs.train.policy": ["off", "react"], "seed": "1..3"})
    assert [axis.name for axis in made.axes] == ["access", "jobs.train.policy", "seed"]
    assert len(made.cells) == 12
    assert made.cells[0].parameters == {"access": "100Mbit", "jobs.train.policy": "off", "seed": 1}
    assert made.cells[-1].parameters == {"access": "200Mbit", "jobs.train.policy": "react", "seed": 3}
    scenario = scenario_of(made.cells[-1].work)
    assert scenario.access.up == 25e6
    assert scenario.jobs[0].policy == "react"
    assert arguments_of(made.cells[-1].work) == (Execution.PIECES, 3, float("inf"))
    assert len({cell.key("v") for cell in made.cells}) == 12


def test_fields_inside_lists_are_named_by_place_id_or_name() -> None:
    made = sweep({"jobs.0.loop.1.all_reduce": ["1MB", "4MB"], "events.busy.udp": ["25%", "75%"]})
    scenarios = [scenario_of(cell.work) for cell in made.cells]
    assert [s.jobs[0].loop[1].size_bytes for s in scenarios] == [10**6, 10**6, 4 * 10**6, 4 * 10**6]
    assert [s.events[0].what("host1")[-4:] for s in scenarios] == ["25 %", "75 %"] * 2


def test_one_direction_of_a_rate_that_stands_for_both() -> None:
    scenario = scenario_of(sweep({"access.up": ["10Mbit"]}).cells[0].work)
    assert (scenario.access.up, scenario.access.down) == (1.25e6, 12.5e6)


def test_fields_that_move_together() -> None:
    made = sweep({"hosts, jobs.0.hosts": [4, 8, [8, 6]]})
    found = [scenario_of(cell.work) for cell in made.cells]
    assert [(s.hosts, s.jobs[0].hosts) for s in found] == [(4, 4), (8, 8), (8, 6)]


def test_a_field_that_the_scenario_does_not_have_yet() -> None:
    made = sweep({"racks": [{"racks": 2, "uplink": "1Gbit"}], "racks.spines": [1, 3], "latency": ["1ms"]})
    assert [s.racks.spines for s in (scenario_of(c.work) for c in made.cells) if s.racks] == [1, 3]


def test_arguments_of_the_simulator() -> None:
    made = sweep({"execution": ["pieces", "rounds", "streams"]}, seed=7, until="2s")
    assert [arguments_of(cell.work) for cell in made.cells] == [(each, 7, 2.0) for each in Execution]


def test_excluded_cells() -> None:
    made = sweep(
        {"jobs.0.policy": ["off", "react"], "seed": "1..4"},
        exclude=[{"jobs.0.policy": "off", "seed": ["2..3", 4]}, {"jobs.0.policy": "react", "seed": 1}],
    )
    assert [tuple(cell.parameters.values()) for cell in made.cells] == [
        ("off", 1),
        ("react", 2),
        ("react", 3),
        ("react", 4),
    ]


def test_a_file_with_a_scenario_beside_it(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "extends: star8\njobs: [{name: a, hosts: 8, iterations: 1, loop: [{all_reduce: 1MB}]}]\n"
    )
    (tmp_path / "s.yaml").write_text("scenario: base.yaml\naxes:\n  jobs.a.policy: [off, packing]\n")
    made = load_sweep(tmp_path / "s.yaml")
    assert made.name == "s"
    assert [cell.parameters["jobs.a.policy"] for cell in made.cells] == ["off", "packing"]
    (tmp_path / "s.yaml").write_text(
        "scenario:\n  extends: star8-udp50-down\n"
        "  jobs: [{name: a, hosts: 8, iterations: 1, loop: [{all_reduce: 1MB}]}]\n"
        "axes:\n  events.udp50-down.udp: [10%, 20%]\n"
    )
    assert len(load_sweep(tmp_path / "s.yaml").cells) == 2


WRONG: list[tuple[dict[str, object], dict[str, object], str]] = [
    ({"acess": ["1Gbit"]}, {}, r"axes.acess: 1Gbit: there is no such field$"),
    ({"access": ["1Gbit", "fast"]}, {}, r"axes.access: fast: .*'fast' is not a rate"),
    ({"jobs.0.policy": ["off", "ract"]}, {}, r"axes.jobs.0.policy: ract: Input should be 'packing'"),
    ({"jobs.train.plan": ["ring", "rign"]}, {}, r"axes.jobs.train.plan: rign: 'rign' is no plan \(one of ring"),
    ({"jobs.trian.policy": ["off"]}, {}, r"axes.jobs.trian.policy: there is no 'trian' in jobs \(there are train\)$"),
    ({"events.busy.udp": ["1%", "0%"]}, {}, r"axes.events.busy.udp: 0%: "),
    ({"events.busy.udp": ["nonsense"]}, {}, r"axes.events.busy.udp: nonsense: "),
    ({"hosts": [2], "seed": [1]}, {}, r"the cell with hosts 2, seed 1: job 'train' wants 4 hosts, there are 2$"),
    ({"name.deep": ["x"]}, {}, r"axes.name.deep: "),
    ({"seed": [1, 1]}, {}, r"axes.seed: 1 is there twice$"),
    ({"seed": ["1..3", 2]}, {}, r"axes.seed: 2 is there twice$"),
    ({"seed": ["a"]}, {}, r"axes.seed: a is no whole number$"),
    ({"seed": "5..1"}, {}, r"axes.seed: 5..1 is no range"),
    ({"seed": []}, {}, r"axes.seed: has no values$"),
    ({"execution": ["peices"]}, {}, r"axes.execution: peices is no execution \(one of pieces, rounds, streams\)$"),
    ({"until": ["10"]}, {}, r"axes.until: '10' has no unit"),
    ({"a..b": [1]}, {}, r"axes.a..b: is no field's path"),
    ({"hosts, jobs.0.hosts": [[4, 4, 4]]}, {}, r"axes.hosts, jobs.0.hosts: a list of values needs one for each"),
    ({"seed": [1], "seed, hosts": [4]}, {}, r"axes.seed, hosts: seed is there twice$"),
    ({}, {}, r"axes: name at least one field"),
    ({"seed": [1]}, {"exlude": []}, r"exlude: there is no such field"),
    ({"seed": [1]}, {"seed": 2}, r"seed: is an axis too$"),
    ({"seed": [1, 2]}, {"exclude": [{"seed": 3}]}, r"exclude.0.seed: 3 is not on that axis$"),
    ({"seed": [1, 2]}, {"exclude": [{"sed": 1}]}, r"exclude.0.sed: there is no such axis"),
    ({"seed": [1, 2]}, {"exclude": [{"seed": [1, 2]}]}, r"exclude: nothing is left$"),
    ({"seed": [1]}, {"exclude": {"seed": 1}}, r"exclude: is a list"),
    ({"seed": [1]}, {"scenario": 3}, r"scenario: name a scenario"),
    ({"seed": [1]}, {"scenario": "nowhere"}, r"scenario: there is no scenario 'nowhere'"),
    ({"seed": [1]}, {"scenario": "star8"}, r"the cell with seed 1: jobs: has no jobs, so there is nothing"),
    ({"seed": ["1..2000000"]}, {}, r"is no range"),
    ({"seed": ["1..90000"], "hosts": [4, 5]}, {}, r"axes: 180000 cells are too many"),
]  # fmt: skip


@pytest.mark.parametrize(("axes", "more", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_what_is_wrong_is_told_with_file_and_field(
    axes: dict[str, object], more: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        sweep(axes, **more)
    assert str(raised.value).startswith("s.yaml: ")
    assert "\n" not in str(raised.value)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read it"):
        load_sweep(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("axes: [\n")
    with pytest.raises(UsageError, match=r"bad.yaml: .*line 2"):
        load_sweep(tmp_path / "bad.yaml")
    (tmp_path / "date.yaml").write_text("scenario: star8\naxes: {seed: [2020-01-01]}\n")
    with pytest.raises(UsageError, match=r"date.yaml: axes.seed: 2020-01-01 is neither"):
        load_sweep(tmp_path / "date.yaml")


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), st.integers())
def test_what_is_put_is_found_there(keys: list[str], value: int) -> None:
    mapping: dict[str, JsonValue] = {"b": {"a": 1}, "c": [0]}
    before = copy.deepcopy(mapping)
    try:
        put(mapping, ".".join(keys), value, where="here")
    except UsageError:
        assert keys[0] == "c"
        assert mapping == before
        return
    at: JsonValue = mapping
    for key in keys:
        assert isinstance(at, dict)
        at = at[key]
    assert at == value


def test_labels_are_short() -> None:
    values: list[JsonValue] = ["25%", 3, True, {"racks": 2}, None]
    assert [label(value) for value in values] == ["25%", "3", "true", "{racks: 2}", "null"]
