"""A plan unrolled into rounds: complete, in an order that can be carried out, the same everywhere."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.collectives.plan import Collective, Phase, Plan, Tree
from headway.collectives.schedule import heights, rounds
from tests.collectives.harness import plans, ring_plan


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_piece_crosses_every_edge_once_and_never_too_early(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 7))
    collective = data.draw(st.sampled_from(Collective))
    plan = data.draw(plans(size, collective))
    pieces = [data.draw(st.integers(0, 4)) for _ in plan.trees]
    table = rounds(plan, collective, pieces)
    assert all(table)
    summed: dict[tuple[int, int, int], int] = {}
    has: set[tuple[int, int, int]] = set()
    for transfers in table:
        assert list(transfers) == sorted(transfers, key=lambda t: (t.tree, t.phase.value, t.piece, t.src, t.dst))
        for move in transfers:
            tree = plan.trees[move.tree]
            if move.phase is Phase.UP:
                assert tree.parents[move.src] == move.dst
                assert summed.get((move.tree, move.piece, move.src), 0) == len(tree.children[move.src])
            else:
                assert tree.parents[move.dst] == move.src
                assert move.src == tree.root or (move.tree, move.piece, move.src) in has
                if collective.reduces:
                    assert summed[move.tree, move.piece, tree.root] == len(tree.children[tree.root])
        for move in transfers:
            key = (move.tree, move.piece, move.dst)
            if move.phase is Phase.UP:
                summed[key] = summed.get(key, 0) + 1
            else:
                assert key not in has
                has.add(key)
    edges = (size - 1) * sum(pieces)
    assert sum(summed.values()) == (edges if collective.reduces else 0)
    assert len(has) == (edges if collective.spreads else 0)


def test_a_ring_keeps_every_rank_sending_in_every_round() -> None:
    table = rounds(ring_plan(5), Collective.ALL_REDUCE, [1] * 5)
    assert len(table) == 2 * 4
    assert all(sorted(move.src for move in transfers) == list(range(5)) for transfers in table)


def test_heights_count_the_hops_to_the_farthest_rank_below() -> None:
    assert heights(Tree((-1, 0, 1, 0, 2), 1.0)) == (3, 2, 1, 0, 0)


def test_pieces_of_a_chain_follow_one_another() -> None:
    plan = Plan("chain", 3, (Tree((1, 2, -1), 1.0),))
    table = rounds(plan, Collective.REDUCE, [3])
    moves = [[(move.piece, move.src, move.dst) for move in transfers] for transfers in table]
    assert moves == [[(0, 0, 1)], [(0, 1, 2), (1, 0, 1)], [(1, 1, 2), (2, 0, 1)], [(2, 1, 2)]]
