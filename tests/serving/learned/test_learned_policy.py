"""How the learned policy decides: each step in its order, and what it learns from."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from headway.errors import UsageError
from headway.serving.learned.corrections import Corrections
from headway.serving.learned.features import DEVICE_SLOTS, NUMBERS, Features
from headway.serving.learned.hash_filter import HashFilter, prefix_group
from headway.serving.learned.options import LearnedOptions
from headway.serving.learned.policy import LearnedPolicy, build, near_best
from headway.serving.learned.samples import Samples
from headway.serving.learned.storage import Memory, MemoryFormatError, from_bytes, to_bytes
from headway.serving.learned.trainer import InlineTrainer, Job
from headway.serving.learned.training import Fit
from headway.serving.policies import build as build_policy
from headway.serving.policy import Candidate, Choice
from headway.serving.replica import ReplicaSpec, ReplicaState
from headway.serving.request import End, Outcome, Request
from tests.serving.learned.scenes import First, Given, asked, candidate, told, waiting_model

BARE = LearnedOptions(control_share=0.0, near_best=0.0, price=0.0, saturation=0.8, range_tolerance=0.25)
BUSY_FIRST = [candidate("a", waiting=4), candidate("b"), candidate("c", waiting=1)]


def predicted(waiting: int) -> float:
    """What `waiting_model` says, seconds."""
    return 0.4 * float(np.exp(0.5 * waiting)) - 0.3


def policy(options: LearnedOptions = BARE, *, model: bool = True, seed: int = 1) -> tuple[LearnedPolicy, Given]:
    trainer = Given()
    made = LearnedPolicy(First(), trainer, seed=seed, options=options)
    if model:
        trainer.next = told(waiting_model())
    return made, trainer


def choose(made: LearnedPolicy, candidates: list[Candidate], request: Request | None = None) -> Choice:
    return made.choose(request or asked(), candidates, 0.0)


def test_without_a_model_the_heuristic_chooses() -> None:
    choice = choose(policy(model=False)[0], BUSY_FIRST)
    assert (choice.replica, choice.by) == ("a", "first")
    assert choice.reason == "no model yet, 0 of 500 samples: the first"
    assert choice.predicted_ttft_s is None


def test_the_least_prediction_wins_and_scores_are_rewards() -> None:
    choice = choose(policy()[0], BUSY_FIRST)
    assert (choice.replica, choice.by) == ("b", "learned")
    assert choice.predicted_ttft_s == pytest.approx(0.1)
    assert choice.scores == pytest.approx({"a": -predicted(4), "b": -0.1, "c": -predicted(1)})
    assert choice.reason == "0.1 s predicted"


@pytest.mark.parametrize("place", range(3))
def test_any_replica_out_of_range_gives_the_choice_to_the_heuristic(place: int) -> None:
    candidates = list(BUSY_FIRST)
    candidates[place] = candidate("abc"[place], waiting=2_000_000)
    choice = choose(policy()[0], candidates)
    assert (choice.replica, choice.by) == ("a", "first")
    assert choice.reason == "waiting out of the range learnt: the first"


def test_range_comes_before_the_guard_and_the_guard_before_exploration() -> None:
    made, _ = policy(replace(BARE, control_share=1.0, explore=1.0))
    choice = choose(made, BUSY_FIRST)
    assert choice.reason == "control arm: the first"
    assert choice.predicted_ttft_s == pytest.approx(predicted(4))
    far = choose(made, [candidate("a", waiting=2_000_000), candidate("b")])
    assert far.reason.startswith("waiting out of the range")


def test_exploration_takes_anyone() -> None:
    made, _ = policy(replace(BARE, explore=1.0))
    choices = [choose(made, BUSY_FIRST) for _ in range(60)]
    assert {choice.replica for choice in choices} == {"a", "b", "c"}
    assert all(choice.reason.startswith("exploring") and choice.by == "learned" for choice in choices)


def test_chance_picks_among_nearly_equal_predictions_only() -> None:
    made, _ = policy(replace(BARE, near_best=2.8))
    assert {choose(made, BUSY_FIRST).replica for _ in range(60)} == {"b", "c"}
    assert "chance among 2" in choose(made, BUSY_FIRST).reason


def test_near_best_of_negative_rewards_is_never_empty_and_has_the_right_sign() -> None:
    rewards = np.array([-1.0, -1.04, -1.2, -5.0], dtype=np.float32)
    assert list(near_best(rewards, 0.05)) == [0, 1]
    assert list(near_best(rewards, 0.0)) == [0]
    assert list(near_best(np.array([2.0, 1.95, 1.0], dtype=np.float32), 0.05)) == [0, 1]
    assert list(near_best(np.zeros(2, dtype=np.float32), 0.05)) == [0, 1]


def test_a_prefix_stays_with_two_replicas_where_caches_are_full() -> None:
    names = [f"r{index}" for index in range(8)]
    full = [candidate(name, hit=512, kv=0.95, waiting=index) for index, name in enumerate(names)]
    made, _ = policy()
    request = asked(blocks=tuple(range(100, 200)))
    (first, second) = HashFilter(saturation=0.8).kept(request, full)
    choice = choose(made, full, request)
    assert choice.replica == names[first]
    assert choice.reason.endswith("of the 2 that its prefix belongs to")
    for free in ({"hit": 512, "kv": 0.5}, {"hit": 90, "kv": 0.95}):
        assert "prefix" not in choose(made, [candidate(name, **free) for name in names], request).reason  # type: ignore[arg-type]
    without = [each for index, each in enumerate(full) if index != first]
    assert names[second] in [without[index].name for index in HashFilter(saturation=0.8).kept(request, without)]


def test_the_filter_spreads_prefixes_evenly() -> None:
    full = [candidate(f"r{index}", hit=512, kv=0.95) for index in range(8)]
    kept = [index for group in range(2000) for index in HashFilter(saturation=0.8).kept(asked(blocks=(group,)), full)]
    counts = np.bincount(kept, minlength=8)
    assert counts.min() > 400
    assert counts.max() < 600


def test_a_prefix_group_is_160_tokens_deep() -> None:
    blocks = tuple(range(1, 41))
    assert prefix_group(Request("q", "m", 640, blocks, 16)) == 10
    assert prefix_group(Request("q", "m", 640, blocks, 64)) == 3
    assert prefix_group(Request("q", "m", 9999, blocks, 512)) == 1
    assert prefix_group(Request("q", "m", 40, (7, 8, 9), 16)) == 9


def test_avoidable_work_has_a_price_among_replicas_of_one_device() -> None:
    near, far = candidate("near", hit=900, waiting=1), candidate("far")
    assert choose(policy()[0], [near, far]).replica == "far"
    assert choose(policy(replace(BARE, price=2.0))[0], [near, far]).replica == "near"
    other = candidate("far", device="v100")
    assert choose(policy(replace(BARE, price=2.0))[0], [near, other]).replica == "far"


def test_a_sample_is_the_row_of_the_replica_that_was_chosen() -> None:
    made, trainer = policy(replace(BARE, least_samples=2, retrain_every=2))
    for number in range(2):
        choose(made, BUSY_FIRST, asked(f"q{number}"))
        made.first_token(f"q{number}", 0.3 + number, 1.0)
    (job,) = trainer.jobs
    assert list(job.fresh.ttft_s) == pytest.approx([0.3, 1.3])
    assert list(job.fresh.rows[:, NUMBERS.index("waiting")]) == [0.0, 0.0]
    assert job.devices == ("a30",)


def test_training_begins_every_so_many_samples_and_never_twice_at_once() -> None:
    made, trainer = policy(replace(BARE, least_samples=5, retrain_every=3), model=False)

    def learn(count: int) -> None:
        for _ in range(count):
            choose(made, BUSY_FIRST)
            made.first_token("q", 0.2, 1.0)

    learn(4)
    assert not trainer.jobs
    learn(1)
    assert len(trainer.jobs) == 1
    learn(20)
    assert len(trainer.jobs) == 1
    trainer.next = told(waiting_model(samples=5))
    assert choose(made, BUSY_FIRST).by == "learned"
    assert [record.what for record in made.records()] == ["model 1 routes, learnt from 5 samples"]
    made.first_token("q", 0.2, 1.0)
    assert len(trainer.jobs) == 2
    trainer.next = "a round of training failed: no memory"
    choose(made, BUSY_FIRST)
    assert choose(made, BUSY_FIRST).by == "learned"
    assert [record.what for record in made.records()] == ["a round of training failed: no memory"]
    learn(3)
    assert len(trainer.jobs) == 3


def test_who_left_before_the_first_token_is_learnt_of_only_if_the_wait_was_longer_than_predicted() -> None:
    made, _ = policy()
    for id_, waited_s, end in (("patient", 3.0, End.CANCELLED), ("hasty", 0.01, End.CANCELLED), ("x", 3.0, End.FAILED)):
        request = asked(id_)
        choose(made, BUSY_FIRST, request)
        made.observe(Outcome(request, "b", 0.0, None, waited_s, 0, None, end), 3.0)
    assert made.samples == 1


def test_a_request_routed_again_is_learnt_once() -> None:
    made, _ = policy()
    choose(made, BUSY_FIRST)
    choose(made, BUSY_FIRST[1:])
    made.first_token("q", 0.2, 1.0)
    made.first_token("q", 0.2, 1.0)
    assert made.samples == 1


def test_the_guard_takes_the_choice_from_a_bad_model_and_gives_it_to_a_good_one() -> None:
    made, trainer = policy(replace(BARE, control_share=0.1, least_samples=100_000, retrain_every=100_000))
    chance = random.Random(1)
    events: list[str] = []

    def drive(requests: int) -> None:
        for _ in range(requests):
            waits = [chance.randrange(4) for _ in "abc"]
            candidates = [candidate(name, waiting=wait) for name, wait in zip("abc", waits, strict=True)]
            choice = choose(made, candidates)
            wait = waits["abc".index(choice.replica)]
            made.first_token("q", predicted(wait) * math.exp(chance.gauss(0, 0.3)), 1.0)
            events.extend(record.event for record in made.records() if record.event != "model")

    trainer.next = told(waiting_model(-0.1))
    drive(1000)
    assert events == ["fall-back"]
    trainer.next = told(waiting_model())
    drive(1500)
    assert events == ["fall-back", "trust"]


def test_a_replica_slower_than_its_kind_is_found_out_and_forgiven_in_time() -> None:
    corrections = Corrections()
    for _ in range(30):
        corrections.measured("slow", 3.0, 1.0, 10.0)
        corrections.measured("usual", 1.1, 1.0, 10.0)
    assert 1.5 < corrections.factor("slow", 10.0) < 3.0
    assert corrections.factor("usual", 10.0) == 1.0
    assert corrections.factor("new", 10.0) == 1.0
    assert 1.0 < corrections.factor("slow", 70.0) < corrections.factor("slow", 10.0)
    assert corrections.factor("slow", 600.0) == 1.0
    made, _ = policy()
    for number in range(30):
        choose(made, [candidate("a")], asked(f"q{number}"))
        made.first_token(f"q{number}", 1.0, 1.0)
    choice = choose(made, [candidate("a"), candidate("b")])
    assert choice.replica == "b"
    assert choice.scores["a"] < choice.scores["b"] == pytest.approx(-0.1)


def test_the_same_seed_gives_the_same_choices() -> None:
    def run(seed: int) -> list[str]:
        made = LearnedPolicy(
            First(),
            InlineTrainer(delay_s=0.5),
            seed=seed,
            options=LearnedOptions(least_samples=60, retrain_every=60, explore=0.2, fit=Fit(epochs=3)),
        )
        chosen = []
        rng = np.random.default_rng(0)
        for number in range(400):
            waits = rng.integers(0, 5, 3)
            request = asked(f"q{number}")
            candidates = [candidate(name, waiting=int(w)) for name, w in zip("abc", waits, strict=True)]
            choice = made.choose(request, candidates, float(number))
            chosen.append(choice.replica)
            made.first_token(request.id, 0.1 + 0.2 * float(waits["abc".index(choice.replica)]), float(number))
        return chosen

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_devices_have_places_and_those_that_come_late_share_the_first() -> None:
    features = Features(("a30",))
    rows = features.rows(asked(), [candidate(f"r{index}", device=f"d{index}") for index in range(9)])
    places = rows[:, len(NUMBERS) :].argmax(axis=1)
    assert list(places) == [2, 3, 4, 5, 6, 7, 0, 0, 0]
    assert rows[:, len(NUMBERS) :].sum() == 9
    assert features.devices == ("a30", "d0", "d1", "d2", "d3", "d4", "d5")
    assert len(features.devices) == DEVICE_SLOTS - 1


def test_a_silent_engine_is_seen_as_one_and_our_own_counts_take_its_place() -> None:
    silent = Candidate(ReplicaState(ReplicaSpec("s"), 3, 700, 2, 900))
    (row,) = Features().rows(asked(), [silent])
    seen = dict(zip(NUMBERS, row, strict=False))
    assert (seen["report missing"], seen["running"], seen["waiting"]) == (1, 2, 3)
    assert (seen["prefill tokens in flight"], seen["decode tokens in flight"]) == (700, 900)


def memory() -> Memory:
    rng = np.random.default_rng(0)
    rows = rng.uniform(0, 10, (30, waiting_model().mean.shape[0])).astype(np.float32)
    samples = Samples(rows, np.full(30, 0.5, dtype=np.float32))
    return Memory(samples, samples[:7], ("a30", "v100"), waiting_model())


def test_what_was_saved_routes_again_at_once() -> None:
    kept = from_bytes(to_bytes(memory()))
    made = LearnedPolicy(First(), Given(), seed=1, options=BARE, memory=kept)
    assert made.samples == 37
    choice = choose(made, BUSY_FIRST)
    assert (choice.replica, choice.by) == ("b", "learned")
    assert kept.devices == ("a30", "v100")


@pytest.mark.parametrize("size", [0, 10, 500, -1])
def test_a_file_that_is_cut_off_or_something_else_is_named_as_such(size: int) -> None:
    with pytest.raises(MemoryFormatError):
        from_bytes(to_bytes(memory())[:size])
    with pytest.raises(MemoryFormatError):
        from_bytes(b"x" * 200)


def test_a_file_with_broken_numbers_is_not_taken() -> None:
    broken = memory()
    broken.scorer.weights[1][0, 0] = np.nan
    with pytest.raises(MemoryFormatError, match="weight1"):
        from_bytes(to_bytes(broken))


def test_built_by_name_with_its_options() -> None:
    made = build_policy("learned", seed=3, options={"heuristic": "round-robin", "least_samples": 100})
    assert isinstance(made, LearnedPolicy)
    choice = made.choose(asked(), BUSY_FIRST, 0.0)
    assert (choice.by, choice.reason[:27]) == ("round-robin", "no model yet, 0 of 100 samp")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"explore": 2}, "explore must be from 0 to 1, not 2"),
        ({"explore": "much"}, "explore must be a number"),
        ({"least_samples": 99.5}, "least_samples must be a whole number"),
        ({"fit": 1}, "unknown option 'fit'"),
        ({"heuristic": 3}, "heuristic must be a policy's name"),
        ({"heuristic": "nobody"}, "unknown policy 'nobody'"),
        ({"heuristic": "learned"}, "can't be the learned policy"),
    ],
)
def test_wrong_options_are_one_clear_line(options: dict[str, object], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        build_policy("learned", options=options)


def test_the_inline_trainer_hands_out_after_its_delay() -> None:
    trainer = InlineTrainer(delay_s=2.0)
    samples = memory().fresh
    trainer.start(Job(samples, samples[:0], samples[:0], 0, None, (), 1, Fit(epochs=1)), 10.0)
    assert trainer.busy
    assert trainer.poll(11.9) is None
    assert trainer.poll(12.0) is not None
    assert trainer.poll(12.1) is None


def test_build_takes_the_heuristic_from_the_caller() -> None:
    made = build(seed=1, options={}, policy=lambda name: First(), trainer=Given())
    assert made.choose(asked(), BUSY_FIRST, 0.0).by == "first"
