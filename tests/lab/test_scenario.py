"""Scenario files: what they may hold, and that every error names the file and the field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headway.collectives.plan_book import PINNABLE
from headway.errors import UsageError
from headway.lab.files import load_scenario, parse_event, parse_scenario, shipped
from headway.lab.jobs import PLANS
from headway.lab.quantities import Amount
from headway.lab.scenario import BwEvent, LoadEvent

STAR: dict[str, object] = {"name": "s", "hosts": 3, "access": "200Mbit"}
JOB: dict[str, object] = {"name": "a", "hosts": 3, "iterations": 1, "loop": [{"all_reduce": "1MB"}]}


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_scenario_reads_and_says_what_it_is(name: str) -> None:
    scenario = load_scenario(name)
    assert scenario.name == name
    assert scenario.description


def test_the_promised_scenarios_are_shipped() -> None:
    loads = {f"star8-udp{share}-{way}" for share in (50, 75) for way in ("down", "up", "both")}
    others = {"star8-tcp-down", "star8-onoff", "star8-moving", "star8-demo", "rack2x4-slow-uplink", "wan4-congested"}
    assert {"star8", "rack2x4", "wan4"} | loads | others <= set(shipped())


def test_quantities_are_in_si_units() -> None:
    scenario = parse_scenario(
        {**STAR, "access": {"up": "100Mbit", "down": "1Gbit"}, "latency": "2ms", "queue": "64KiB"}, where="f"
    )
    assert scenario.access.up == 12.5e6
    assert scenario.access.down == 125e6
    assert scenario.latency == 0.002
    assert scenario.queue == 65536


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"access": 200}, "access.up"),
        ({"access": "fast"}, "access.up"),
        ({"access": "0Mbit"}, "access.up"),
        ({"access": {"up": "1Mbit"}}, "access.down"),
        ({"hosts": 0}, "hosts"),
        ({"latency": "-1ms"}, "latency"),
        ({"quue": "64KiB"}, "quue"),
        ({"racks": {"racks": 2, "uplink": "1Gbit", "spine": 2}}, "racks.spine"),
        ({"events": [{"id": "a", "type": "fire", "target": "host0"}]}, "events.0"),
        ({"events": [{"id": "a", "type": "bw", "target": "host0"}]}, "events.0.rate"),
        ({"events": [{"id": "a", "type": "loss", "target": "host0", "loss": 1}]}, "events.0.loss"),
        ({"events": [{"id": "a", "type": "load", "target": "host0", "udp": "50%", "on": "1s"}]}, "events.0"),
        ({"events": [{"id": "a", "type": "load", "target": "host0"}]}, "events.0"),
        ({"events": [{"id": "a", "type": "load", "target": "host0", "udp": "50%", "tcp": 1}]}, "events.0"),
        ({"hosts": [{"name": "a", "up": "1Mbit"}]}, "hosts.0.up"),
        ({"costs": {"hop": 5}}, "costs.hop"),
        ({"jobs": [{**JOB, "plan": "two-level"}]}, "jobs.0.plan"),
        ({"jobs": [{**JOB, "plan": "ring", "policy": "clairvoyant"}]}, "jobs.0"),
    ],
)
def test_an_error_names_file_and_field(change: dict[str, object], field: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_scenario({**STAR, **change}, where="dir/my.yaml")
    assert error.value.where == f"dir/my.yaml: {field}"
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"events": [{"id": "a", "type": "bw", "target": "host7", "rate": "50%"}]}, "host7"),
        ({"events": [{"id": "a", "type": "bw", "target": "host0", "rate": "50%"}] * 2}, "'a'"),
        ({"events": [{"id": "a", "type": "bw", "target": "host0", "rate": "50%", "path": 0}]}, "path 0"),
        ({"hosts": [{"name": "a"}, {"name": "a"}]}, "'a'"),
        ({"hosts": [{"name": "A b"}]}, "'A b'"),
        ({"hosts": [{"name": "a", "rack": "r"}]}, "'r'"),
    ],
)
def test_an_error_across_fields_names_the_culprit(change: dict[str, object], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        parse_scenario({**STAR, **change}, where="my.yaml")


def test_extends_lays_fields_over_the_parent(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("extends: star8\naccess: {up: 100Mbit}\n")
    (tmp_path / "top.yaml").write_text("extends: ./base.yaml\nhosts: 3\n")
    scenario = load_scenario(tmp_path / "top.yaml")
    assert (scenario.name, scenario.hosts, scenario.access.up) == ("top", 3, 12.5e6)


def test_a_circle_of_extends_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: ./b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: ./a.yaml\n")
    with pytest.raises(UsageError, match="extends itself"):
        load_scenario(tmp_path / "a.yaml")


@pytest.mark.parametrize("text", ["hosts: [", "- 1\n", "1: 2\n", "\x00", ""])
def test_a_file_that_is_no_mapping_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"bad\.yaml"):
        load_scenario(path)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("extends: star8\nhosts: 3\nlatency: 1ms\nhosts: 4\n", "'hosts' in line 4 is there already in line 2"),
        ("extends: star8\naccess:\n  up: 1Mbit\n  up: 2Mbit\n", "'up' in line 4 is there already in line 3"),
        ("extends: star8\naccess: {up: 1Mbit, up: 2Mbit}\n", "'up' in line 2 is there already in line 2"),
    ],
)
def test_a_key_that_is_there_twice_is_an_error_that_names_the_line(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=re.escape(word)):
        load_scenario(path)


def test_every_fault_is_told(tmp_path: Path) -> None:
    wrong = {
        **STAR, "quue": "64KiB", "latency": "-1ms",
        "events": [
            {"id": "a", "type": "bw", "target": "host0"},
            {"id": "b", "type": "loss", "target": "host0", "loss": 1},
        ],
    }  # fmt: skip
    with pytest.raises(UsageError) as error:
        parse_scenario(wrong, where="my.yaml")
    for field in ("quue", "latency", "events.0.rate", "events.1.loss"):
        assert f"{field}: " in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_is_called_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        load_scenario(tmp_path)


def test_unknown_names_list_what_there_is() -> None:
    with pytest.raises(UsageError, match="star8"):
        load_scenario("stra8")
    with pytest.raises(UsageError, match="no such file"):
        load_scenario("./nowhere.yaml")


def test_on_and_off_are_names_of_fields() -> None:
    event = load_scenario("star8-onoff").events[0]
    assert isinstance(event, LoadEvent)
    assert (event.on, event.off) == (20.0, 20.0)


def test_events_can_be_made_from_text_and_from_numbers() -> None:
    event = parse_event({"id": "x", "type": "bw", "target": "host0", "rate": "25%", "direction": "up"})
    assert event == BwEvent(id="x", target=("host0",), rate=Amount(fraction=0.25), direction="up")
    assert event.directions == ("up",)
    with pytest.raises(UsageError, match="no type of event"):
        parse_event({"id": "x", "type": "storm"})


@pytest.mark.parametrize(
    ("target", "rate", "link"),
    [
        ("host0", "201Mbit", "uplink of host0"),
        ("host0", "101%", "uplink of host0"),
        ("slow", "60Mbit", "uplink of slow"),
        ("rack1", "90Mbit", "downlink of rack1"),
    ],
)
def test_a_rate_above_the_link_s_is_refused(target: str, rate: str, link: str) -> None:
    data = {
        "name": "s",
        "hosts": [{"name": "host0"}, {"name": "slow", "access": "50Mbit"}],
        "access": "200Mbit",
        "racks": {"racks": 2, "uplink": {"up": "100Mbit", "down": "80Mbit"}},
        "events": [{"id": "fast", "type": "bw", "target": target, "rate": rate}],
    }
    with pytest.raises(UsageError, match=rf"^f: event 'fast': rate .* is above that of the {link}"):
        parse_scenario(data, where="f")


def test_a_rate_of_the_link_itself_may_be_said() -> None:
    event = {"id": "same", "type": "bw", "target": "hosts", "rate": "100%"}
    assert parse_scenario({**STAR, "events": [event]}, where="f").events


def test_a_file_of_another_kind_is_told_in_one_short_line_without_our_names() -> None:
    wrong: dict[str, object] = {
        "name": "s", "hosts": [[1]] * 500, "access": [2], "racks": 3, "events": {"a": 1}, "jobs": ["a"],
    }  # fmt: skip
    with pytest.raises(UsageError) as caught:
        parse_scenario(wrong, where="f.yaml")
    told = str(caught.value)
    assert told.startswith("f.yaml: hosts.0: must be a mapping of fields; ")
    assert "and 500 more" in told
    assert len(told) < 300
    assert not re.search("HostEntry|Racks|Rates|Job|instance|dictionary|tuple", told)


def test_what_is_no_regular_file_is_read_all_the_same() -> None:
    with pytest.raises(UsageError, match=r"/dev/null: must be a mapping of fields"):
        load_scenario("/dev/null")


def test_plans_to_hold_are_those_of_the_library() -> None:
    assert PLANS == PINNABLE
