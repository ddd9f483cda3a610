"""Events become beginnings and ends, in order, that pair up; the player plays them and takes back what is left."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.decide.journal import EventRecord
from headway.lab.effects import Effect
from headway.lab.files import parse_scenario
from headway.lab.scenario import Scenario
from headway.lab.steps import Step, steps
from headway.lab.timeline import Player


def scenario(*events: dict[str, Any]) -> Scenario:
    return parse_scenario({"name": "s", "hosts": 4, "access": "1Gbit", "events": list(events)}, where="test")


def load(**fields: object) -> dict[str, object]:
    return {"id": "l", "type": "load", "udp": "50%", "target": "host0", **fields}


def brief(found: list[Step]) -> list[tuple[float, str, str]]:
    return [(step.at_s, step.phase, ",".join(effect.target for effect in step.effects)) for step in found]


def test_one_event_begins_and_ends() -> None:
    found = list(steps(scenario(load(start="2s", duration="3s"))))
    assert brief(found) == [(2.0, "begin", "host0"), (5.0, "end", "host0")]
    assert found[0].key == found[1].key
    assert found[0].event_id == "l"


def test_without_a_duration_it_never_ends() -> None:
    assert brief(list(steps(scenario(load())))) == [(0.0, "begin", "host0")]


def test_on_off_is_exact_without_a_seed_and_cut_at_the_end() -> None:
    found = list(steps(scenario(load(on="2s", off="1s", duration="4s"))))
    assert [step.at_s for step in found] == [0.0, 2.0, 3.0, 4.0]


def test_moving_visits_its_targets_in_turn_and_ends_one_before_it_begins_the_next() -> None:
    found = list(steps(scenario(load(target=["host1", "host3"], move="1s", duration="2.5s"))))
    assert brief(found) == [
        (0.0, "begin", "host1"), (1.0, "end", "host1"), (1.0, "begin", "host3"), (2.0, "end", "host3"),
        (2.0, "begin", "host1"), (2.5, "end", "host1"),
    ]  # fmt: skip


def test_moving_with_a_seed_repeats_and_never_stays() -> None:
    moving = scenario(load(target="hosts", move="1s", seed=5))
    first, again = (brief(list(itertools.islice(steps(moving), 200))) for _ in range(2))
    assert first == again
    begun = [target for _, phase, target in first if phase == "begin"]
    assert all(a != b for a, b in itertools.pairwise(begun))
    assert set(begun) == {"host0", "host1", "host2", "host3"}


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "start": st.integers(0, 20),
                "duration": st.integers(1, 50),
                "kind": st.sampled_from(["", "onoff", "move"]),
            }
        ),
        max_size=5,
    ),
    st.integers(0, 3),
)
def test_steps_are_in_order_and_pair_up(shapes: list[dict[str, Any]], seed: int) -> None:
    events = []
    for number, shape in enumerate(shapes):
        patterns: dict[str, dict[str, object]] = {
            "": {}, "onoff": {"on": "3s", "off": "2s", "seed": seed}, "move": {"move": "2s", "target": "hosts"},
        }  # fmt: skip
        extra = patterns[shape["kind"]]
        events.append(
            load(**{"id": f"e{number}", "start": f"{shape['start']}s", "duration": f"{shape['duration']}s", **extra})
        )
    found = list(steps(scenario(*events)))
    assert [step.at_s for step in found] == sorted(step.at_s for step in found)
    in_force: set[str] = set()
    for step in found:
        if step.phase == "begin":
            assert step.key not in in_force
            in_force.add(step.key)
        else:
            in_force.remove(step.key)
    assert not in_force


class Stage:
    """Remembers what was asked of it."""

    def __init__(self, *, broken: bool = False) -> None:
        self.asked: list[tuple[str, str]] = []
        self.broken = broken

    def begin(self, key: str, effects: tuple[Effect, ...]) -> None:
        if self.broken:
            raise RuntimeError("no")
        self.asked.append(("begin", key))

    def end(self, key: str) -> None:
        self.asked.append(("end", key))


def test_the_player_takes_back_what_is_in_force_when_it_stops() -> None:
    stage, records = Stage(), list[EventRecord]()
    player = Player(stage, scenario(load(), load(id="later", start="1h")), records.append)
    player.start()
    while not records:
        pass
    player.stop()
    assert stage.asked == [("begin", "l#0"), ("end", "l#0")]
    assert [(record.event, record.phase) for record in records] == [("l", "begin"), ("l", "end")]
    assert records[0].links == ["downlink of host0", "uplink of host0"]
    player.stop()


def test_what_goes_wrong_in_the_player_is_raised() -> None:
    player = Player(Stage(broken=True), scenario(load()), lambda record: None)
    player.start()
    with pytest.raises(RuntimeError, match="no"):
        player.stop()


def test_a_player_that_never_started_stops() -> None:
    Player(Stage(), scenario(load()), lambda record: None).stop()
