"""The mirror of the replicas' prefix caches: what it holds, what it forgets, what it never claims."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.serving.prefix import DEFAULT_CACHE_TOKENS, EMPTY_LIMIT, PrefixIndex, Sent, chain
from headway.serving.request import Request

BLOCK = 16
_numbers = count()


def prompt(*ids: int, rest_tokens: int = 0) -> Request:
    """A prompt of whole blocks with these ids, and some tokens of one more."""
    blocks = chain(ids if rest_tokens == 0 else (*ids, 10**9 + next(_numbers)))
    return Request(f"q{next(_numbers)}", "m", len(ids) * BLOCK + rest_tokens, blocks, BLOCK)


def index(**cache_tokens: int) -> PrefixIndex:
    made = PrefixIndex()
    for name, tokens in cache_tokens.items():
        made.join(name, tokens)
    return made


def serve(
    mirror: PrefixIndex, request: Request, replica: str, *, output_tokens: int = 0, cached: int | None = None
) -> int:
    """Send, compute and end; what had been expected."""
    hit = mirror.hits(request, replica)
    sent = mirror.sent(request, replica)
    mirror.computed(replica, sent)
    mirror.ended(request, replica, sent, output_tokens=output_tokens, hit_tokens=hit, cached_tokens=cached)
    return hit


def held(mirror: PrefixIndex) -> dict[int, int]:
    return {block: bits for part in mirror._holders for block, bits in part.items()}


def test_chained_hashes_name_the_whole_prefix() -> None:
    one, two, other = chain((1, 2, 3)), chain((1, 2, 4)), chain((5, 2, 3))
    assert one[:2] == two[:2]
    assert one[2] != two[2]
    assert not set(one) & set(other)
    assert all(0 <= block < 2**64 for block in one)
    assert chain((-1,)) == chain((2**64 - 1,))
    assert chain(()) == ()


def test_hits_end_where_prompts_part() -> None:
    mirror = index(a=1000, b=1000)
    mirror.sent(prompt(1, 2, 3), "a")
    mirror.sent(prompt(1, 2), "b")
    assert mirror.all_hits(prompt(1, 2, 3, 4)) == {"a": 3 * BLOCK, "b": 2 * BLOCK}
    assert mirror.all_hits(prompt(1, 9)) == {"a": BLOCK, "b": BLOCK}
    assert mirror.all_hits(prompt(2, 3)) == {}
    assert mirror.hits(prompt(1, 2), "nobody") == 0


def test_the_last_token_is_computed_always() -> None:
    mirror = index(a=1000)
    mirror.sent(prompt(1, 2), "a")
    assert mirror.hits(prompt(1, 2), "a") == BLOCK
    assert mirror.hits(prompt(1, 2, rest_tokens=1), "a") == 2 * BLOCK


def test_a_part_of_a_block_is_not_found() -> None:
    mirror = index(a=1000)
    mirror.sent(Request("x", "m", BLOCK + 5, chain((1, 2)), BLOCK), "a")
    assert mirror.hits(prompt(1, 2, 3), "a") == BLOCK
    assert mirror.used_tokens("a") == BLOCK


def test_the_least_recently_used_goes_first_and_of_one_prompt_its_end() -> None:
    mirror = index(a=4 * BLOCK)
    mirror.sent(prompt(1, 2), "a")
    mirror.sent(prompt(3, 4), "a")
    mirror.sent(prompt(1), "a")
    mirror.sent(prompt(5), "a")
    assert mirror.hits(prompt(1, 2, 0), "a") == BLOCK
    assert mirror.hits(prompt(3, 4, 0), "a") == 2 * BLOCK
    mirror.sent(prompt(6), "a")
    assert mirror.hits(prompt(3, 4, 0), "a") == BLOCK
    assert mirror.hits(prompt(1, 0), "a") == BLOCK


def test_a_prompt_longer_than_the_cache_leaves_its_beginning() -> None:
    mirror = index(a=2 * BLOCK)
    mirror.sent(prompt(1, 2, 3, 4), "a")
    assert mirror.hits(prompt(1, 2, 3, 4), "a") == 2 * BLOCK
    assert mirror.used_tokens("a") == 2 * BLOCK


def test_answers_take_room() -> None:
    mirror = index(a=4 * BLOCK)
    serve(mirror, prompt(1, 2), "a")
    serve(mirror, prompt(3), "a", output_tokens=2 * BLOCK)
    assert mirror.used_tokens("a") == 4 * BLOCK
    assert mirror.hits(prompt(1, 2, 0), "a") == BLOCK


def test_no_cache_no_hits() -> None:
    mirror = index(a=0)
    serve(mirror, prompt(1, 2), "a", output_tokens=100)
    assert mirror.all_hits(prompt(1, 2, 3)) == {}
    assert mirror.used_tokens("a") == 0


def test_an_unknown_size_is_the_default() -> None:
    mirror = PrefixIndex()
    mirror.join("a")
    mirror.sent(Request("x", "m", 10**6, chain(range(10**6 // 512)), 512), "a")
    assert mirror.used_tokens("a") == DEFAULT_CACHE_TOKENS


def test_resizing_drops_what_is_too_much() -> None:
    mirror = index(a=1000)
    mirror.sent(prompt(1, 2, 3), "a")
    mirror.resize("a", 2 * BLOCK + 1)
    assert mirror.hits(prompt(1, 2, 3, 4), "a") == 2 * BLOCK


def test_an_engine_that_found_nothing_is_believed() -> None:
    mirror = index(a=1000)
    serve(mirror, prompt(1, 2, 3), "a")
    serve(mirror, prompt(7, 8), "a")
    assert serve(mirror, prompt(7, 8, 9), "a", cached=0) == 2 * BLOCK
    # Whatever was last used no later than 7 and 8 is gone as well; what this request brought is there.
    assert mirror.hits(prompt(1, 2, 3, 4), "a") == 0
    assert mirror.hits(prompt(7, 8, 9, 10), "a") == 3 * BLOCK


def test_what_was_used_later_than_the_missing_blocks_stays() -> None:
    mirror = index(a=1000)
    serve(mirror, prompt(1, 2), "a")
    serve(mirror, prompt(3, 4), "a")
    serve(mirror, prompt(1, 2, 5), "a", cached=0)
    assert mirror.hits(prompt(3, 4, 0), "a") == 2 * BLOCK


def test_a_part_that_is_missing_says_nothing_of_the_part_that_was_found() -> None:
    mirror = index(a=10_000)
    serve(mirror, prompt(1, 2, 3, 4, 5, 6, 7, 8), "a")
    serve(mirror, prompt(20, 21), "a")
    serve(mirror, prompt(1, 2), "a")
    serve(mirror, prompt(1, 2, 3, 4, 5, 6, 7, 9), "a", cached=2 * BLOCK)
    assert mirror.hits(prompt(1, 2, 3, 0), "a") == 3 * BLOCK
    assert mirror.hits(prompt(1, 2, 3, 4, 5, 6, 7, 8, 0), "a") == 7 * BLOCK
    assert mirror.hits(prompt(20, 21, 0), "a") == 2 * BLOCK


def test_a_little_less_than_expected_is_an_error_of_estimation() -> None:
    mirror = index(a=1000)
    serve(mirror, prompt(9, 9), "a")
    serve(mirror, prompt(1, 2, 3, 4), "a")
    serve(mirror, prompt(1, 2, 3, 4, 5), "a", cached=3 * BLOCK)
    assert mirror.hits(prompt(9, 9, 0), "a") == 2 * BLOCK


def test_a_prefix_that_was_still_being_computed_is_no_evidence() -> None:
    mirror = index(a=1000)
    serve(mirror, prompt(9), "a")
    first = prompt(1, 2)
    mirror.sent(first, "a")
    serve(mirror, prompt(1, 2, 3), "a", cached=0)
    assert mirror.hits(prompt(9, 0), "a") == BLOCK
    assert mirror.hits(prompt(1, 2, 0), "a") == 2 * BLOCK


def test_an_engine_that_never_finds_anything_has_no_cache_until_it_does() -> None:
    mirror = index(a=1000, b=1000)
    serve(mirror, prompt(1), "b")
    serve(mirror, prompt(1), "a", cached=0)
    for _ in range(EMPTY_LIMIT):
        assert serve(mirror, prompt(1, 2), "a", cached=0) == BLOCK
    assert mirror.all_hits(prompt(1, 2)) == {"b": BLOCK}
    serve(mirror, prompt(1, 2), "a", cached=BLOCK)
    assert mirror.hits(prompt(1, 2), "a") == BLOCK


def test_unsent_takes_back_only_what_it_brought() -> None:
    mirror = index(a=1000)
    serve(mirror, prompt(1, 2), "a")
    request = prompt(1, 2, 3, 4)
    sent = mirror.sent(request, "a")
    later = prompt(1, 2, 3)
    mirror.sent(later, "a")
    mirror.unsent(request, "a", sent)
    assert mirror.hits(prompt(1, 2, 3, 4, 5), "a") == 3 * BLOCK


def test_unsent_leaves_what_another_is_about_to_bring() -> None:
    mirror = index(a=1000)
    mirror.sent(prompt(1, 2), "a")
    request = prompt(1, 2, 3)
    mirror.unsent(request, "a", mirror.sent(request, "a"))
    assert mirror.hits(prompt(1, 2, 3, 4), "a") == 2 * BLOCK


def test_forgetting_and_leaving() -> None:
    mirror = index(a=1000, b=1000)
    mirror.sent(prompt(1), "a")
    mirror.sent(prompt(1), "b")
    mirror.forget("a")
    assert mirror.all_hits(prompt(1, 0)) == {"b": BLOCK}
    mirror.leave("b")
    mirror.join("c", 1000)
    assert mirror.all_hits(prompt(1, 0)) == {}
    with pytest.raises(KeyError):
        mirror.leave("b")
    with pytest.raises(ValueError, match="mirrored already"):
        mirror.join("c")


def test_replicas_that_come_and_go_leave_nothing() -> None:
    mirror = index(stays=1000)
    mirror.sent(prompt(1, 2), "stays")
    for number in range(2000):
        mirror.join(f"r{number}", 1000)
        mirror.sent(prompt(1, number), f"r{number}")
        mirror.leave(f"r{number}")
    assert list(held(mirror).values()) == [1, 1]
    assert list(mirror._names.values()) == ["stays"]
    assert len(mirror._free_bits) == 1


class _Plain:
    """The same cache in the plainest way: a list per replica from the least to the most recently used."""

    def __init__(self, capacity_blocks: int) -> None:
        self.capacity_blocks = capacity_blocks
        self.kept: list[int] = []

    def send(self, request: Request) -> None:
        for block in reversed(request.blocks[: self.capacity_blocks]):
            if block in self.kept:
                self.kept.remove(block)
            self.kept.append(block)
        del self.kept[: max(0, len(self.kept) - self.capacity_blocks)]

    def hits(self, request: Request) -> int:
        found = 0
        for block in request.blocks[: (request.input_tokens - 1) // BLOCK]:
            if block not in self.kept:
                break
            found += BLOCK
        return found


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 2), min_size=1, max_size=6)), min_size=1, max_size=40
    ),
    st.integers(1, 8),
)
def test_it_is_an_lru_cache_of_blocks(steps: list[tuple[str, list[int]]], capacity_blocks: int) -> None:
    mirror = index(**dict.fromkeys("abc", capacity_blocks * BLOCK))
    plain = {name: _Plain(capacity_blocks) for name in "abc"}
    for name, ids in steps:
        request = prompt(*ids)
        assert mirror.all_hits(request) == {n: plain[n].hits(request) for n in "abc" if plain[n].hits(request)}
        mirror.sent(request, name)
        plain[name].send(request)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_never_more_than_sent_nor_than_it_holds(data: st.DataObject) -> None:
    capacity = data.draw(st.integers(0, 200))
    mirror = index(a=capacity)
    ever: set[int] = set()
    flights: list[tuple[Request, Sent, int]] = []
    for _ in range(data.draw(st.integers(1, 30))):
        action = data.draw(st.sampled_from(("send", "end", "unsend", "forget", "resize")))
        if action == "send":
            request = prompt(
                *data.draw(st.lists(st.integers(0, 2), max_size=6)), rest_tokens=data.draw(st.integers(1, 9))
            )
            hit = mirror.hits(request, "a")
            whole = request.blocks[: hit // BLOCK]
            assert set(whole) <= ever
            assert hit <= capacity
            flights.append((request, mirror.sent(request, "a"), hit))
            ever.update(request.blocks)
        elif action in ("end", "unsend") and flights:
            request, sent, hit = flights.pop(data.draw(st.integers(0, len(flights) - 1)))
            if action == "unsend":
                mirror.unsent(request, "a", sent)
            else:
                cached = data.draw(st.none() | st.integers(0, request.input_tokens))
                mirror.ended(request, "a", sent, output_tokens=7, hit_tokens=hit, cached_tokens=cached)
        elif action == "forget":
            mirror.forget("a")
            assert mirror.used_tokens("a") == 0
        elif action == "resize":
            capacity = data.draw(st.integers(0, 200))
            mirror.resize("a", capacity)
        kept = mirror._mirrors["a"].blocks
        assert mirror.used_tokens("a") == sum(tokens for _, tokens in kept.values()) <= capacity
        assert set(held(mirror)) == {key for key in kept if isinstance(key, int)}
    for request, sent, _ in flights:
        mirror.unsent(request, "a", sent)
    assert not mirror._mirrors["a"].prefilling
