"""What routing sees of a prompt."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.serving.gateway.incoming import parse_call
from headway.serving.gateway.prompt import (
    BLOCK_BYTES,
    BYTES_PER_TOKEN,
    MEDIA_TOKENS,
    Prompt,
    PromptError,
    TokenRatio,
    chat_prompt,
    rerank_prompt,
    text_prompt,
)


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Blocks in which two prompts agree from the start on."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count


@given(same=st.binary(max_size=2000), one=st.binary(max_size=600), other=st.binary(max_size=600))
def test_prompts_agree_in_as_many_blocks_as_they_share_whole_ones(same: bytes, one: bytes, other: bytes) -> None:
    rows = [same + one, same + other]
    shared = next((at for at in range(min(map(len, rows))) if rows[0][at] != rows[1][at]), min(map(len, rows)))
    blocks = [Prompt(row).blocks("m") for row in rows]
    assert [len(each) for each in blocks] == [-(-len(row) // BLOCK_BYTES) for row in rows]
    if rows[0] == rows[1]:
        assert blocks[0] == blocks[1]
    else:
        assert common(*blocks) == shared // BLOCK_BYTES


def test_another_model_shares_nothing() -> None:
    prompt = Prompt(b"x" * 1000)
    assert not set(prompt.blocks("a")) & set(prompt.blocks("b"))


def test_a_longer_conversation_shares_the_shorter_one() -> None:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "a" * 3000}, {"role": "user", "content": "b" * 500}]
    longer = [*messages, {"role": "assistant", "content": "c"}, {"role": "user", "content": "d"}]
    one, other = (chat_prompt({"messages": each}).blocks("m") for each in (messages, longer))
    assert common(one, other) == 3504 // BLOCK_BYTES


@pytest.mark.parametrize(
    "change",
    [
        {"messages": [{"role": "system", "content": "hi"}]},
        {"messages": [{"role": "user", "content": "ho"}]},
        {"tools": [{"type": "function"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "b"}}]}]},
        {"messages": [{"role": "user", "content": "hi", "tool_calls": [{"id": "1"}]}]},
    ],
)
def test_whatever_the_engine_sees_changes_the_hash(change: dict[str, Any]) -> None:
    base = {"messages": [{"role": "user", "content": "hi"}]}
    assert chat_prompt({**base, **change}).blocks("m") != chat_prompt(base).blocks("m")


def test_what_the_engine_does_not_see_changes_nothing() -> None:
    base: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
    parts = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "temperature": 0.5}
    assert chat_prompt(base) == chat_prompt(parts)


def test_lengths() -> None:
    ratios = TokenRatio()
    assert ratios.lengths(Prompt(b"x" * 400), "m") == (100, 64)
    assert ratios.lengths(Prompt(b""), "m") == (1, 64)
    assert ratios.lengths(text_prompt([1] * 500, "prompt"), "m") == (500, 64)
    assert ratios.lengths(text_prompt([[1, 2], [3]], "prompt"), "m") == (3, 64)
    image = chat_prompt({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}]})
    assert ratios.lengths(image, "m")[0] >= MEDIA_TOKENS
    assert text_prompt(["a", "b"], "prompt").row != text_prompt("ab", "prompt").row
    assert len(rerank_prompt({"query": "q", "documents": ["d" * 100]}).row) > 100


def test_the_ratio_is_learned_of_each_model_and_follows() -> None:
    ratios = TokenRatio()
    text = Prompt(b"x" * 1000)
    ratios.learn(text, "m", 500)
    assert ratios.bytes_per_token("m") == 2
    assert ratios.bytes_per_token("other") == BYTES_PER_TOKEN
    assert ratios.lengths(text, "m") == (500, 128)
    for _ in range(200):
        ratios.learn(text, "m", 200)
    assert abs(ratios.bytes_per_token("m") - 5) < 0.01


def test_nonsense_teaches_nothing_much() -> None:
    ratios = TokenRatio()
    text = Prompt(b"x" * 1000)
    for prompt, tokens in ((text, 0), (text, -5), (Prompt(b"ab"), 1), (Prompt(text.row, ids=250), 7)):
        ratios.learn(prompt, "m", tokens)
    ratios.learn(Prompt(text.row, media=1), "m", 900)
    assert ratios.bytes_per_token("m") == BYTES_PER_TOKEN
    ratios.learn(text, "m", 10**9)
    assert ratios.bytes_per_token("m") == 0.5


def test_paths_that_are_the_engines_business_share_their_beginnings_too() -> None:
    turns = [{"role": "user", "content": "a" * 3000}, {"role": "assistant", "content": "b"}]
    calls = [
        parse_call(
            "/v1/responses",
            json.dumps({"model": "m", "instructions": "be brief", "input": turns[:count]}).encode(),
            {},
            request_id="1",
            ratios=TokenRatio(),
        )
        for count in (1, 2)
    ]
    one, other = (call.request.blocks for call in calls)
    assert common(one, other) == 11
    assert calls[0].request.input_tokens > 700


def test_lone_surrogates_and_odd_ids() -> None:
    assert chat_prompt({"messages": [{"role": "user", "content": "\ud800"}]}).blocks("m\ud800")
    with pytest.raises(PromptError):
        text_prompt([2**40], "prompt")
