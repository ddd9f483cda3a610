"""The guard-rail: a bad model is left, a good one is trusted again, chance alone moves nothing."""

from __future__ import annotations

import math
import random

from headway.serving.learned.guard import Arm, Guard, GuardRules, Move


def driven(
    guard: Guard, requests: int, *, factor: float = 1.0, wrong: float = 1.0, tail: float = 0.0, seed: int = 1
) -> list[Move]:
    """Requests whose TTFT is heavy-tailed; learned's is `factor` times that, and now and then `tail` seconds more.

    Predictions are wrong by the factor `wrong`.
    """
    chance = random.Random(seed)
    moves = []
    for _ in range(requests):
        arm = guard.arm(chance.random())
        tokens = round(math.exp(chance.gauss(8, 1)))
        ttft_s = 1e-4 * tokens * math.exp(chance.gauss(0, 0.8))
        predicted_s = 1e-4 * tokens * (factor if arm is Arm.LEARNED else 1.0)
        if arm is Arm.LEARNED:
            ttft_s = ttft_s * factor + (tail if chance.random() < 0.1 else 0.0)
        move = guard.measured(arm, ttft_s, predicted_s / wrong, tokens)
        if move is not None:
            moves.append(move)
    return moves


def test_a_bad_model_is_left_and_trusted_again_when_it_is_good() -> None:
    guard = Guard(GuardRules())
    assert [move.event for move in driven(guard, 3000, factor=2.0)] == ["fall-back"]
    (move,) = driven(guard, 4000, factor=0.8, seed=2)
    assert move.event == "trust"
    assert "no worse" in move.what


def test_a_bad_model_is_left_soon_and_not_trusted_while_it_stays_bad() -> None:
    guard = Guard(GuardRules())
    (move,) = driven(guard, 6000, factor=3.0)
    assert move.event == "fall-back"
    assert move.samples < 1000
    assert move.learned_s > move.heuristic_s
    assert "worse" in move.what


def test_a_tail_alone_is_enough() -> None:
    guard = Guard(GuardRules())
    moves = driven(guard, 3000, factor=0.95, tail=20.0)
    assert [move.event for move in moves][:1] == ["fall-back"]


def test_equal_arms_move_nothing() -> None:
    moved = sum(bool(driven(Guard(GuardRules()), 3000, seed=seed)) for seed in range(8))
    assert moved == 0


def test_better_is_never_left() -> None:
    assert not any(driven(Guard(GuardRules()), 3000, factor=0.7, seed=seed) for seed in range(4))


def test_predictions_that_are_far_off_are_reason_enough() -> None:
    guard = Guard(GuardRules())
    (move,) = driven(guard, 1000, wrong=6.0)
    assert move.event == "fall-back"
    assert "predictions" in move.what
    assert driven(guard, 1500, wrong=6.0, seed=2) == []
    assert [again.event for again in driven(guard, 4000, seed=3)] == ["trust"]


def test_requests_that_fail_count_as_the_limit_and_say_nothing_of_the_prediction() -> None:
    guard = Guard(GuardRules(limit_s=10.0))
    chance = random.Random(1)
    moves = []
    for _ in range(2000):
        arm = guard.arm(chance.random())
        fails = arm is Arm.LEARNED and chance.random() < 0.3
        moves.append(guard.measured(arm, math.inf if fails else 0.1, 0.1, 1000))
    (move,) = [move for move in moves if move is not None][:1]
    assert move.event == "fall-back"
    assert "worse" in move.what
    assert move.learned_s < 10.0


def test_requests_of_one_length_are_compared_as_they_are() -> None:
    guard = Guard(GuardRules(control_share=0.5))
    chance = random.Random(1)
    moves = []
    for _ in range(400):
        arm = guard.arm(chance.random())
        ttft_s = (0.6 if arm is Arm.LEARNED else 0.3) * math.exp(chance.gauss(0, 0.1))
        moves.append(guard.measured(arm, ttft_s, ttft_s, 1000))
    (move,) = [move for move in moves if move is not None][:1]
    assert move.event == "fall-back"
    assert 0.28 < move.heuristic_s < 0.32
    assert 0.55 < move.learned_s < 0.65


def test_the_shares_of_the_arms() -> None:
    rules = GuardRules(control_share=0.1, probe_share=0.2)
    guard = Guard(rules)
    assert guard.arm(0.05) is Arm.HEURISTIC
    assert guard.arm(0.15) is Arm.LEARNED
    driven(guard, 3000, factor=3.0)
    assert guard.arm(0.15) is Arm.LEARNED
    assert guard.arm(0.25) is Arm.HEURISTIC
