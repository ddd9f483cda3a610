from __future__ import annotations

import pytest

from headway.collectives import families, verify
from headway.collectives.plan import Collective, Plan, PlanError, Tree

SUM = Collective.ALL_REDUCE


def plan(*trees: Tree) -> Plan:
    return Plan("bad", len(trees[0].parents), trees)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (Plan("bad", 2, ()), "at least one rank and one tree"),
        (plan(Tree((-1, 0), 0.5)), "add up to 0.5"),
        (plan(Tree((-1, 0), 1.5), Tree((-1, 0), -0.5)), "tree 1: share -0.5 is not above 0"),
        (plan(Tree((-1, 0), float("nan"))), "share nan"),
        (plan(Tree((-1, 5, 0), 1.0)), "rank 1 has parent 5"),
        (plan(Tree((-1, 1, 0), 1.0)), "rank 1 has parent 1"),
        (plan(Tree((-1, -1, 0), 1.0)), "2 roots"),
        (plan(Tree((1, 0), 1.0)), "0 roots"),
        (plan(Tree((-1, 2, 3, 1), 1.0)), "rank 1 never reaches the root"),
        (Plan("bad", 3, (Tree((-1, 0), 1.0),)), "2 ranks, the plan has 3"),
    ],
)
def test_broken_plans_are_refused_in_words(broken: Plan, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        verify.check(broken, SUM)


def test_a_broadcast_has_one_root() -> None:
    with pytest.raises(PlanError, match="broadcast from rank 0, but rooted at 1"):
        verify.check(families.direct([1.0] * 3), Collective.BROADCAST, root=0)
    with pytest.raises(PlanError, match="reduce from rank"):
        verify.check(families.direct([1.0] * 3), Collective.REDUCE)


@pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER])
def test_each_block_belongs_to_trees_of_its_own_rank(collective: Collective) -> None:
    with pytest.raises(PlanError, match=r"rooted at rank 0 carry 0\.1"):
        verify.check(families.direct([0.1, 0.5, 0.4]), collective)


def test_a_plan_that_passed_is_not_simulated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    good = families.ring(range(5))
    verify.check(good, SUM)

    def again(*_: object) -> None:
        raise AssertionError("simulated twice")

    monkeypatch.setattr(verify, "_simulate", again)
    verify.check(good, SUM)
    with pytest.raises(AssertionError, match="simulated twice"):
        verify.check(good, Collective.ALL_GATHER)


def test_a_thousand_ranks_and_trees_pass() -> None:
    verify.check(families.ring(range(1024)), SUM)
