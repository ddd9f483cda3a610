"""The block cache: what is found, what goes first, and that no block is ever lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.serving.engine.cache import BlockCache


def _fill(cache: BlockCache, hashes: list[int]) -> None:
    cache.take(len(hashes))
    assert [cache.name(block) for block in hashes] == [True] * len(hashes)


def test_a_prefix_is_found_up_to_its_first_gap() -> None:
    cache = BlockCache(8)
    _fill(cache, [1, 2, 4])
    assert cache.hits([1, 2, 3, 4], most=4) == 2
    assert cache.hits([1, 2, 3, 4], most=1) == 1
    assert cache.hits([9, 1], most=2) == 0


def test_the_longest_unused_goes_first_and_the_end_of_a_prompt_before_its_begin() -> None:
    cache = BlockCache(4)
    for prompt in ([1, 2], [3, 4]):
        _fill(cache, prompt)
    cache.release([1, 2], 0)
    cache.release([3, 4], 0)
    cache.take(1)
    assert (cache.hits([1], 1), cache.hits([2], 1)) == (1, 0)
    cache.use([1])
    cache.take(1)
    assert (cache.hits([1], 1), cache.hits([3], 1), cache.hits([4], 1)) == (1, 1, 0)
    assert cache.free == 1


def test_new_blocks_go_before_those_that_hold_something() -> None:
    cache = BlockCache(4)
    _fill(cache, [1, 2])
    cache.release([1, 2], 0)
    cache.take(2)
    assert cache.hits([1, 2], 2) == 2
    cache.take(1)
    assert cache.hits([1, 2], 2) == 1


def test_a_block_in_use_by_another_is_not_free() -> None:
    cache = BlockCache(3)
    _fill(cache, [1, 2])
    cache.use([1])
    cache.release([1, 2], 0)
    assert cache.free == 2
    assert cache.unused([1, 2]) == 1
    with pytest.raises(ValueError, match="3 blocks wanted, 2 are free"):
        cache.take(3)


def test_a_second_copy_is_not_found_and_is_free_again_afterwards() -> None:
    cache = BlockCache(4)
    _fill(cache, [1])
    cache.take(1)
    assert not cache.name(1)
    cache.release([], 1)
    cache.release([1], 0)
    assert (cache.free, cache.findable) == (4, 1)


def test_without_prefix_caching_nothing_is_found() -> None:
    cache = BlockCache(4, keeps=False)
    cache.take(2)
    assert not cache.name(1)
    assert (cache.hits([1], 1), cache.findable) == (0, 0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(1, 6)), max_size=60))
def test_used_free_and_findable_blocks_always_add_up(moves: list[tuple[bool, int, int]]) -> None:
    """Prompts of one family share prefixes: block k of family f is 10 f + k."""
    cache = BlockCache(12)
    held: list[tuple[list[int], int]] = []
    for starts, family, length in moves:
        if starts:
            hashes = [10 * family + index for index in range(length)]
            found = hashes[: cache.hits(hashes, length)]
            if length - len(found) + cache.unused(found) > cache.free:
                continue
            cache.use(found)
            cache.take(length - len(found))
            named = [*found, *(block for block in hashes[len(found) :] if cache.name(block))]
            held.append((named, length - len(named)))
        elif held:
            cache.release(*held.pop(family % len(held)))
        named_in_use = {block for named, _ in held for block in named}
        assert cache.blocks - cache.free == len(named_in_use) + sum(unnamed for _, unnamed in held)
        assert all(cache.hits([block], 1) for block in named_in_use)
        assert cache.findable <= cache.blocks
    for named, unnamed in held:
        cache.release(named, unnamed)
    assert cache.free == cache.blocks
    cache.take(cache.blocks)
    assert cache.findable == 0
