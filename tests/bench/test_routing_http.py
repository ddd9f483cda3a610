"""What the routing benches on real processes make of rows; and their loads."""

from __future__ import annotations

import itertools
import json
import math

import pytest

from bench.routing_http import Cell, Told, chosen, consecutive, fleet_of, heard, shown, simulated, tau
from bench.routing_llama import FIRST_BYTES, Turn, conversation
from bench.routing_llama import Told as Talked
from bench.routing_llama import shown as talks
from headway.errors import UsageError

CELL = Cell("4xA30", "sharing-30", 10.0, 5.0, 4, 1, 1)


def told(policy: str, where: str, mean_ttft_s: float) -> Told:
    """With this mean."""
    return Told("4xA30", "sharing-30", 10.0, policy, where, mean_ttft_s, mean_ttft_s, mean_ttft_s, 0.5, 3, 3)


def line(number: int, ttft_s: float | None, end: str = "done") -> str:
    """Of the load generator's file."""
    row = {"number": number, "end": end, "ttft_s": ttft_s, "prompt_tokens": 100, "cached_tokens": 10 * number}
    return json.dumps({**row, "due_s": 1.0, "sent_s": 1.0 + 0.001 * number})


class TestHeard:
    def test_counts_what_comes_after_the_warm_up_and_was_answered(self) -> None:
        lines = [line(0, 9.0), line(1, 0.1), line(2, 0.3), line(3, None, "cut")]
        found = heard(CELL, "lmetric", lines, "")
        assert (found.done, found.counted) == (2, 3)
        assert found.mean_ttft_s == pytest.approx(0.2)
        assert found.cached == pytest.approx(30 / 200)
        assert found.late_p99_s == pytest.approx(0.003)

    def test_nothing_answered_is_no_figure(self) -> None:
        found = heard(CELL, "lmetric", [line(1, None, "cut")], "")
        assert found.done == 0
        assert math.isnan(found.mean_ttft_s)


class TestOrder:
    def test_tau_says_how_alike_two_orders_are(self) -> None:
        names = ("a", "b", "c")
        same = [told(n, w, t) for w in ("http", "simulated") for n, t in zip(names, (1.0, 2.0, 3.0), strict=True)]
        turned = same[:3] + [told(n, "simulated", t) for n, t in zip(names, (3.0, 2.0, 1.0), strict=True)]
        assert tau(same) == pytest.approx(1.0)
        assert tau(turned) == pytest.approx(-1.0)
        assert math.isnan(tau(same[:1]))

    def test_the_table_has_both_figures_and_both_ranks(self) -> None:
        found = [
            told("a", "http", 0.2),
            told("a", "simulated", 0.3),
            told("b", "http", 0.1),
            told("b", "simulated", 0.4),
        ]
        lines = shown(found).splitlines()
        assert "| b | 100 / 400 |" in lines[2]
        assert "| 1 / 2 |" in lines[2]
        assert "| 2 / 1 |" in lines[3]
        assert lines[-1].endswith("| -1.00 |")

    def test_unknown_names_are_refused(self) -> None:
        assert chosen("a,b", ("a", "b", "c"), "--x") == ["a", "b"]
        with pytest.raises(UsageError, match="--x"):
            chosen("a,d", ("a", "b"), "--x")


class TestSimulated:
    def test_a_faster_fleet_answers_sooner_and_counts_what_is_asked(self) -> None:
        slow, fast = (
            simulated(Cell("2xA30+2xV100", "sharing-30", 2.0, speed, 60, 20, 1), "least-requests")
            for speed in (1.0, 4.0)
        )
        assert slow.counted == fast.counted == fast.done == 40
        assert fast.mean_ttft_s < slow.mean_ttft_s

    def test_a_fleet_has_its_kinds(self) -> None:
        names = [replica.name for replica in fleet_of("2xA30+2xV100", 1.0)]
        assert len(set(names)) == 4

    def test_ports_in_a_row(self) -> None:
        ports = consecutive(3)
        assert ports == list(range(ports[0], ports[0] + 3))


class TestConversations:
    def test_each_turn_begins_with_all_before_it(self) -> None:
        turns = conversation(3, 4, 1)
        assert [len(messages) for messages in turns] == [1, 3, 5, 7]
        assert all(later[: len(before)] == before for before, later in itertools.pairwise(turns))
        assert len(turns[0][0]["content"]) == FIRST_BYTES

    def test_come_from_their_number_and_seed(self) -> None:
        assert conversation(1, 2, 1) == conversation(1, 2, 1)
        assert len({json.dumps(conversation(n, 2, s)) for n in (1, 2) for s in (1, 2)}) == 4

    def test_the_table_tells_where_turns_went(self) -> None:
        turns = [Turn(0.0, 0.1, 100, 50, "a"), Turn(1.0, 0.3, 100, 100, "b"), Turn(2.0, 0.2, 100, 0, "a")]
        last = talks([Talked("lmetric", turns, 0)]).splitlines()[-1]
        assert last == "| lmetric | 200 | 200 | 300 | 50 | 2 + 1 |  |"
