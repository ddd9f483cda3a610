"""The tables against published figures, and profiles against their formula."""

from __future__ import annotations

import pytest

from headway.errors import UsageError
from headway.serving.engine.hardware import DEVICES, MODELS, profile

PUBLISHED = {
    "llama-3-8b": 8.03e9,
    "llama-3-70b": 70.6e9,
    "llama-3.2-1b": 1.24e9,
    "llama-3.2-3b": 3.21e9,
    "deepseek-7b": 6.91e9,
    "qwen2.5-1.5b": 1.54e9,
    "qwen2.5-7b": 7.61e9,
    "qwen2.5-14b": 14.8e9,
    "qwen2.5-32b": 32.8e9,
}
"""Parameters as on the models' cards."""


def test_the_configurations_give_the_published_sizes() -> None:
    assert {name: model.parameters for name, model in MODELS.items()} == pytest.approx(PUBLISHED, rel=0.005)


def test_llama_3_8b_on_an_a30() -> None:
    it = profile("a30", "llama-3-8b")
    assert MODELS["llama-3-8b"].kv_bytes == 131072
    assert it.weights_s == pytest.approx(16.06e9 / (933e9 * 0.8), rel=0.001)
    assert it.context_s == pytest.approx(131072 / (933e9 * 0.8))
    assert it.token_s == pytest.approx(2 * 6.98e9 / (165e12 * 0.6), rel=0.001)
    assert it.attention_s == pytest.approx(4 * 4096 * 32 / (165e12 * 0.4))
    # 24 GiB * 0.9 - 1 GiB - 14.96 GiB of weights, 128 KiB a token
    assert it.cache_tokens == pytest.approx((24 * 0.9 - 1 - 14.96) * 8192, rel=0.001)
    assert it.prefix_caching
    assert it.chunked_prefill


def test_a_v100_neither_cuts_prompts_nor_keeps_prefixes_unless_told_to() -> None:
    it = profile("v100", "llama-3-8b")
    assert not it.prefix_caching
    assert not it.chunked_prefill
    assert profile("v100", "llama-3-8b", prefix_caching=True).prefix_caching


def test_tensor_parallel_shares_all_and_pays_for_the_sums() -> None:
    one, four = profile("a100", "llama-3-8b"), profile("a100", "llama-3-8b", tensor_parallel=4)
    assert four.weights_s == pytest.approx(one.weights_s / 4)
    assert four.attention_s == pytest.approx(one.attention_s / 4)
    assert four.token_s - one.token_s / 4 == pytest.approx(64 * 4096 * 2 * 1.5 / 300e9)
    assert four.step_s - one.step_s == pytest.approx(64 * 8e-6)
    assert four.cache_tokens > 4 * one.cache_tokens


def test_half_an_accelerator_is_half_as_fast_and_holds_less_than_half() -> None:
    whole, half = profile("h100", "llama-3-8b"), profile("h100", "llama-3-8b", fraction=0.5)
    assert half.token_s == pytest.approx(2 * whole.token_s)
    assert half.context_s == pytest.approx(2 * whole.context_s)
    assert half.step_s == whole.step_s
    assert half.cache_tokens < whole.cache_tokens / 2


def test_settings_replace_the_defaults() -> None:
    it = profile("a30", "llama-3-8b", step_tokens=512, cache_tokens=4096, block_tokens=512, most_running=4, step_s=0.5)
    assert (it.step_tokens, it.cache_tokens, it.block_tokens, it.most_running, it.step_s) == (512, 4096, 512, 4, 0.5)


@pytest.mark.parametrize(
    ("device", "model", "more", "message"),
    [
        ("a31", "llama-3-8b", {}, "unknown device 'a31' .*a30"),
        ("a30", "llama-9", {}, "unknown model 'llama-9' .*llama-3-8b"),
        ("t4", "llama-3-8b", {}, "leaves no room"),
        ("a30", "llama-3-8b", {"fraction": 0.5}, "leaves no room"),
        ("a30", "llama-3-8b", {"fraction": 0.0}, "not above 0"),
        ("a30", "llama-3-8b", {"tensor_parallel": 3}, "share evenly"),
    ],
)
def test_what_cannot_be_is_refused(device: str, model: str, more: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        profile(device, model, **more)  # type: ignore[arg-type]


def test_every_device_and_model_names_its_source() -> None:
    assert all(device.source for device in DEVICES.values())
    assert all(model.source for model in MODELS.values())
