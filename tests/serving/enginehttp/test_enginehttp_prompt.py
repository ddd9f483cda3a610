"""Words, ids and blocks of prompts."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from headway.serving.enginehttp.prompt import Prompt, of_chat, of_ids, of_text

BLOCK_TOKENS = 4
few_ids = st.lists(st.integers(0, 3), max_size=30)


def common(one: Prompt, other: Prompt) -> int:
    """Blocks from the first on that both have."""
    pairs = list(zip(one.blocks, other.blocks, strict=False))
    return next((at for at, (a, b) in enumerate(pairs) if a != b), len(pairs))


@given(few_ids, few_ids, few_ids)
def test_hashes_agree_exactly_as_far_as_whole_blocks_do(shared: list[int], one: list[int], other: list[int]) -> None:
    left, right = shared + one, shared + other
    same = next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    whole = same // BLOCK_TOKENS
    if left == right:
        whole = -(-len(left) // BLOCK_TOKENS)  # also the last one, which may be a part of a block
    if left and right:
        assert common(of_ids(left, BLOCK_TOKENS), of_ids(right, BLOCK_TOKENS)) == whole
        words = [" ".join(f"w{id_}" for id_ in ids) for ids in (left, right)]
        assert common(of_text(words[0], BLOCK_TOKENS), of_text(words[1], BLOCK_TOKENS)) == whole


@given(few_ids)
def test_a_block_per_block_tokens(ids: list[int]) -> None:
    prompt = of_ids(ids, BLOCK_TOKENS)
    assert prompt.tokens == max(1, len(ids))
    assert len(prompt.blocks) == -(-prompt.tokens // BLOCK_TOKENS)
    assert all(0 <= block < 2**64 for block in prompt.blocks)


def test_white_space_separates_words_and_counts_for_nothing_else() -> None:
    assert of_text("a  b\n\tc", 2) == of_text("a b c", 2)
    assert of_text("ab c", 2).blocks != of_text("a bc", 2).blocks
    assert of_text(" ", 2).tokens == 1


def test_words_and_ids_never_share() -> None:
    assert of_text("1 2", 2).blocks != of_ids([1, 2], 2).blocks


def test_a_chat_costs_a_token_per_role_and_one_for_the_turn() -> None:
    chat = of_chat([("system", "be brief"), ("user", "hello")], 2)
    assert chat.tokens == 2 + 3 + 1
    longer = of_chat([("system", "be brief"), ("user", "hello"), ("assistant", "w1")], 2)
    assert common(chat, longer) == 2  # <system> be | brief <user> | hello <answer>
    assert of_chat([("user", "be brief")], 4).blocks != of_chat([("system", "be brief")], 4).blocks
