"""What each policy chooses, on candidates made by hand."""

from __future__ import annotations

from collections import Counter

import pytest

from headway.errors import UsageError
from headway.serving.policies import ALIASES, NAMES, build
from headway.serving.policies.session import Ring
from headway.serving.policy import Candidate, Choice, Policy
from headway.serving.replica import EngineReport, ReplicaSpec, ReplicaState
from headway.serving.request import End, Outcome, Request

HEURISTICS = tuple(name for name in NAMES if name != "learned")


def candidate(
    name: str,
    requests: int = 0,
    *,
    hit: int = 0,
    prefill_tokens: int = 0,
    speed: float = 1.0,
    engine: tuple[int, int] | None = None,
) -> Candidate:
    report = None if engine is None else EngineReport(*engine)
    state = ReplicaState(
        ReplicaSpec(name, speed=speed), decode_requests=requests, prefill_tokens=prefill_tokens, report=report
    )
    return Candidate(state, hit)


def asked(tokens: int = 1000, *, session: str = "", id_: str = "q") -> Request:
    return Request(id_, "m", tokens, session=session)


def choose(policy: Policy, *candidates: Candidate, tokens: int = 1000, session: str = "") -> Choice:
    return policy.choose(asked(tokens, session=session), candidates, 0.0)


def chosen(name: str, *candidates: Candidate, tokens: int = 1000, session: str = "", **options: object) -> set[str]:
    """All that a policy may choose: over many seeds."""
    return {
        choose(build(name, seed=seed, options=options), *candidates, tokens=tokens, session=session).replica
        for seed in range(40)
    }


@pytest.mark.parametrize("name", HEURISTICS)
def test_what_holds_of_every_policy(name: str) -> None:
    candidates = [candidate("a", 3, hit=500), candidate("b", 1, engine=(2, 1)), candidate("c", 2, prefill_tokens=10)]
    runs = []
    for _ in range(2):
        policy = build(name, seed=7)
        runs.append([choose(policy, *candidates, session=f"s{k % 5}") for k in range(50)])
        assert choose(policy, candidates[1]).replica == "b"
        assert policy.records() == []
        assert policy.name == name
    assert runs[0] == runs[1]
    for choice in runs[0]:
        assert choice.replica in "abc"
        assert choice.reason
        assert choice.by == name
        assert set(choice.scores) <= set("abc")


def test_round_robin_takes_turns_whoever_comes_and_goes() -> None:
    policy = build("round-robin")
    a, b, c = candidate("a"), candidate("b", 50), candidate("c")
    assert [choose(policy, a, b, c).replica for _ in range(4)] == ["a", "b", "c", "a"]
    assert [choose(policy, a, c).replica for _ in range(2)] == ["c", "a"]
    assert [choose(policy, a, b, c).replica for _ in range(3)] == ["b", "c", "a"]
    assert choose(policy, a, b, c, candidate("new")).replica == "new"


def test_round_robin_forgets_those_that_left() -> None:
    policy = build("round-robin")
    for number in range(1000):
        assert choose(policy, candidate("stays"), candidate(f"r{number}")).replica in ("stays", f"r{number}")
    assert len(vars(policy)["_last"]) < 100


def test_random_is_fair() -> None:
    policy = build("random", seed=1)
    times = Counter(choose(policy, candidate("a", 9), candidate("b"), candidate("c")).replica for _ in range(3000))
    assert min(times.values()) > 850


def test_least_requests() -> None:
    assert chosen("least-requests", candidate("a", 3), candidate("b", 1), candidate("c", 1)) == {"b", "c"}
    # The engine's word is not asked: it may be older than what we sent.
    assert chosen("least-requests", candidate("a", 1, engine=(50, 50)), candidate("b", 2)) == {"a"}


def test_power_of_two_never_takes_the_worst() -> None:
    three = candidate("a", 3), candidate("b", 1), candidate("c", 2)
    assert chosen("power-of-two", *three) == {"b", "c"}
    choice = choose(build("power-of-two"), *three)
    assert len(choice.scores) == 2
    assert choice.scores[choice.replica] == min(choice.scores.values())


def test_prefix_takes_the_best_match_whatever_its_load() -> None:
    assert chosen("prefix", candidate("a", 90, hit=501), candidate("b", 0, hit=400)) == {"a"}
    assert chosen("prefix", candidate("a", 5, hit=600), candidate("b", 2, hit=600), candidate("c")) == {"b"}


def test_prefix_wants_more_than_the_threshold() -> None:
    pair = candidate("a", 1, hit=500), candidate("b", 0)
    assert chosen("prefix", *pair) == {"b"}
    assert chosen("prefix", *pair, threshold=0.4) == {"a"}
    assert chosen("prefix", candidate("a", 1, hit=1), candidate("b", 0), threshold=0) == {"a"}
    assert chosen("prefix", candidate("a", 1), candidate("b", 0), threshold=0) == {"b"}


def test_prefix_and_load_balances_when_counts_differ_by_more_than_eight() -> None:
    assert chosen("prefix-and-load", candidate("a", 9, hit=900), candidate("b", 0), candidate("c", 0)) == {"b", "c"}
    assert chosen("prefix-and-load", candidate("a", 8, hit=900), candidate("b", 0), deviations=10) == {"a"}
    assert chosen("prefix-and-load", candidate("a", 9, hit=900), candidate("b", 0), imbalance=9, deviations=10) == {"a"}


def test_prefix_and_load_takes_the_best_match_within_a_deviation() -> None:
    # Counts 7, 4, 12, 10: mean 8.25, sample deviation 3.5, limit 11.75. The population's, 3.03, would say 11.28.
    four = (
        candidate("a", 7, hit=200),
        candidate("b", 4, hit=400),
        candidate("c", 12, hit=800),
        candidate("d", 10, hit=600),
    )
    assert chosen("prefix-and-load", *four) == {"d"}
    assert chosen("prefix-and-load", *four, deviations=0) == {"b"}
    assert chosen("prefix-and-load", *four, deviations=2) == {"c"}


def test_prefix_and_load_uses_the_deviation_of_a_sample() -> None:
    # Counts 0, 2, 3: mean 1.67; with the sample's deviation 3.19, with the population's 2.91.
    assert chosen("prefix-and-load", candidate("a"), candidate("b", 2), candidate("c", 3, hit=100)) == {"c"}


def test_prefix_and_load_of_equal_matches_takes_the_less_loaded() -> None:
    equal = (
        candidate("a", 2, hit=400),
        candidate("b", 1, hit=400),
        candidate("c", 1, hit=400),
        candidate("d", 0, hit=100),
    )
    assert chosen("prefix-and-load", *equal) == {"b", "c"}


def test_prefix_and_load_without_a_match_that_fits() -> None:
    assert chosen("prefix-and-load", candidate("a", 2), candidate("b", 1)) == {"b"}
    assert chosen("prefix-and-load", candidate("a", 8, hit=900), candidate("b", 0), candidate("c", 0)) == {"b", "c"}


def test_lmetric_multiplies_tokens_and_requests() -> None:
    # a: (0 + 1000) * 3 = 3000; b: (500 + 400) * 4 = 3600; c: (2900 + 0 left) * 1 > both
    three = (
        candidate("a", 2),
        candidate("b", 3, hit=600, prefill_tokens=500),
        candidate("c", 0, hit=999, prefill_tokens=3100),
    )
    choice = choose(build("lmetric"), *three)
    assert choice.scores == {"a": 3000.0, "b": 3600.0, "c": 3101.0}
    assert choice.replica == "a"


def test_lmetric_believes_the_greater_count() -> None:
    policy = build("lmetric")
    assert choose(policy, candidate("a", 1, engine=(4, 2)), candidate("b", 3, engine=(0, 0))).scores == {
        "a": 7000.0,
        "b": 4000.0,
    }


def test_least_work_prices_what_it_adds() -> None:
    idle = candidate("idle")
    near, far = candidate("near", prefill_tokens=500, hit=1000), candidate("far", prefill_tokens=3500, hit=1000)
    between = candidate("between", prefill_tokens=1500, hit=1000)
    assert chosen("least-work", near, idle) == {"near"}
    assert chosen("least-work", between, idle) == {"between"}, "1500 ahead count less than three times 1000 new"
    assert chosen("least-work", between, idle, price=0) == {"idle"}
    assert chosen("least-work", far, idle) == {"idle"}


def test_least_work_is_work_over_speed() -> None:
    slow, fast = candidate("slow"), candidate("fast", prefill_tokens=1000, speed=8.0)
    assert chosen("least-work", slow, fast) == {"fast"}


def test_lmetric_ties_are_left_to_chance() -> None:
    assert chosen("lmetric", candidate("a"), candidate("b"), candidate("c", 1)) == {"a", "b"}


def test_least_queue_time_divides_by_speed() -> None:
    assert chosen("least-queue-time", candidate("a", 3, speed=2.0), candidate("b", 2)) == {"a"}
    assert chosen("least-queue-time", candidate("a", 1, engine=(5, 5), speed=2.0), candidate("b", 2)) == {"b"}
    assert chosen("least-queue-time", candidate("a", 0, speed=0.5), candidate("b", 0), candidate("c", 0)) == {"b", "c"}


def test_preble_exploits_a_match_of_more_than_half() -> None:
    assert chosen("preble", candidate("a", 9, hit=501), candidate("b")) == {"a"}
    assert chosen("preble", candidate("a", hit=501), candidate("b", hit=501), candidate("c", hit=500)) == {"a", "b"}


def test_preble_explores_by_recent_work_and_own_cost() -> None:
    policy = build("preble", seed=1)
    # 1000 new tokens: 1000 * (1 + 500 / 27000). With 500 cached: 500 * (1 + 750 / 27000).
    first = choose(policy, candidate("a", hit=500), candidate("b"))
    assert first.scores == pytest.approx({"a": 513.89, "b": 1018.52}, abs=0.01)
    second = choose(policy, candidate("a", hit=500), candidate("b"))
    assert second.scores == pytest.approx({"a": 2 * 513.89, "b": 1018.52}, abs=0.01)
    assert (first.replica, second.replica) == ("a", "b")


def test_preble_does_not_follow_a_match_to_a_replica_loaded_far_above_the_least() -> None:
    policy = build("preble", seed=1)
    pair = candidate("a", hit=600), candidate("b")
    assert [choose(policy, *pair).replica for _ in range(3)] == ["a", "b", "a"]
    patient = build("preble", seed=1, options={"rebalance": 3})
    assert [choose(patient, *pair).replica for _ in range(10)] == ["a", "b"] + ["a"] * 7 + ["b"]


def test_preble_forgets_what_is_older_than_its_window() -> None:
    policy = build("preble", seed=1, options={"window_s": 10})
    pair = candidate("a", hit=500), candidate("b")
    policy.choose(asked(), pair, 0.0)
    assert policy.choose(asked(), pair, 10.0).scores["a"] == pytest.approx(1027.78, abs=0.01)
    assert policy.choose(asked(), pair, 10.1).scores["a"] == pytest.approx(513.89, abs=0.01)
    for number in range(500):
        policy.choose(asked(), [candidate(f"r{number}")], 20.0 + 20 * number)
    assert len(vars(policy)["_windows"]) < 70


def test_preble_counts_answers_at_their_mean_length() -> None:
    policy = build("preble", seed=1)
    policy.observe(Outcome(asked(), "a", 0.0, 0.1, 1.0, 20, None, End.DONE), 1.0)
    policy.observe(Outcome(asked(), "a", 0.0, None, 1.0, 0, None, End.FAILED), 1.0)
    choose(policy, candidate("a"))
    assert choose(policy, candidate("a")).scores["a"] == pytest.approx(2 * 1018.52 + 200, abs=0.01)


def test_a_session_stays_where_it_is() -> None:
    many = [candidate(f"r{k}", k) for k in range(8)]
    policy, other = build("session", seed=1), build("session", seed=2)
    for key in range(50):
        home = choose(policy, *many, session=f"s{key}").replica
        assert choose(other, *reversed(many), session=f"s{key}").replica == home
        assert choose(policy, *many, session=f"s{key}").replica == home


def test_without_a_session_the_least_loaded() -> None:
    assert chosen("session", candidate("a", 1), candidate("b", 0), candidate("c", 0)) == {"b", "c"}


def test_a_bound_sends_a_session_on_to_the_next_on_the_ring() -> None:
    policy = build("session", options={"bound": 1.25})
    idle = [candidate(f"r{k}") for k in range(4)]
    home = choose(policy, *idle, session="s").replica
    # 6 requests and this one: 1.75 each, at most 2.19, rounded up to 3: home is full.
    full = [candidate(f"r{k}", 3 if f"r{k}" == home else 1) for k in range(4)]
    second = choose(policy, *full, session="s")
    assert second.replica != home
    assert choose(policy, *full, session="s").replica == second.replica
    below = [candidate(f"r{k}", 2) for k in range(4)]
    assert choose(policy, *below, session="s").replica == home
    assert choose(build("session"), *full, session="s").replica == home


def test_a_replica_that_leaves_moves_only_its_own_keys() -> None:
    ring = Ring()
    names = frozenset(f"r{k}" for k in range(10))
    ring.keep(names)
    before = {f"key{k}": ring.first(f"key{k}") for k in range(5000)}
    assert max(Counter(before.values()).values()) < 5000 / 10 * 1.5
    ring.keep(names - {"r3"})
    moved = [key for key, name in before.items() if ring.first(key) != name]
    assert {before[key] for key in moved} == {"r3"}
    assert 0.05 < len(moved) / 5000 < 0.15
    ring.keep(names)
    assert {key: ring.first(key) for key in before} == before


def test_the_ring_is_walked_from_the_first_on() -> None:
    ring = Ring()
    ring.keep(frozenset("abcd"))
    for key in ("x", "y", "z"):
        order = ring.walk(key)
        assert sorted(order) == ["a", "b", "c", "d"]
        assert order[0] == ring.first(key)
        ring.keep(frozenset("abcd") - {order[0]})
        assert ring.first(key) == order[1]
        ring.keep(frozenset("abcd"))


@pytest.mark.parametrize(("alias", "name"), sorted(ALIASES.items()))
def test_names_of_others(alias: str, name: str) -> None:
    assert build(alias).name == name
    assert build(alias.replace("-", "_").upper()).name == name


def test_the_learned_policy_begins_with_its_heuristic() -> None:
    policy = build("learned", seed=1, options={"heuristic": "least-request"})
    choice = choose(policy, candidate("a", 3), candidate("b", 1))
    assert (policy.name, choice.by, choice.replica) == ("learned", "least-requests", "b")


def test_mistakes_in_names_and_options() -> None:
    with pytest.raises(UsageError, match=r"unknown policy 'fastest' \(known: round-robin, random"):
        build("fastest")
    with pytest.raises(UsageError, match=r"policy prefix: unknown option 'treshold' \(known: threshold\)"):
        build("prefix", options={"treshold": 0.5})
    with pytest.raises(UsageError, match=r"policy random: unknown option 'x' \(it has none\)"):
        build("random", options={"x": 1})
    with pytest.raises(UsageError, match=r"threshold must be from 0 to 1, not 1\.5"):
        build("prefix", options={"threshold": 1.5})
    for value in ("0.5", True, None, [1], float("nan")):
        with pytest.raises(UsageError, match="threshold must be"):
            build("prefix", options={"threshold": value})
