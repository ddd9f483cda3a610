"""Engines' metrics pages: vLLM's, SGLang's, llama.cpp's, and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from headway.serving.gateway.metric_names import ENGINES, NoReportError, read
from headway.serving.replica import EngineReport

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a}b {c"} 3.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="a}b {c"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 99.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000",num_gpu_blocks_override="None"} 1.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="m"} 0.0
"""
SGLANG = """\
sglang:num_running_reqs{model_name="m"} 5.0
sglang:num_queue_reqs{model_name="m"} 1.0
sglang:token_usage{model_name="m"} 0.28
sglang:max_total_num_tokens{model_name="m"} 471258.0
"""
LLAMA = "llamacpp:requests_processing 2\nllamacpp:requests_deferred 7\n"


def _report(text: str) -> EngineReport:
    return read(text.encode())[1]


def test_vllm() -> None:
    names, report = read(VLLM.encode())
    assert names.engine == "vLLM"
    assert report == EngineReport(running=3, waiting=2, kv_usage=0.25, cache_tokens=16_000)


def test_the_older_name_of_the_share_of_the_cache() -> None:
    assert _report(VLLM.replace("kv_cache_usage_perc", "gpu_cache_usage_perc")).kv_usage == 0.25


def test_sglang_and_llama() -> None:
    assert _report(SGLANG) == EngineReport(running=5, waiting=1, kv_usage=0.28, cache_tokens=471_258)
    assert _report(LLAMA) == EngineReport(running=2, waiting=7)
    assert _report(LLAMA + "llamacpp:kv_cache_usage_ratio 0.5\n").kv_usage == 0.5


def test_data_parallel_engines_are_added_up_and_their_shares_averaged() -> None:
    more = (
        VLLM.replace('engine="0"', 'engine="1"')
        .replace("running{", "running{", 1)
        .replace(" 3.0", " 5.0")
        .replace("0.25", "0.75")
    )
    assert _report(VLLM + more) == EngineReport(running=8, waiting=4, kv_usage=0.5, cache_tokens=32_000)


def test_workers_that_hold_parts_of_one_engine_count_once() -> None:
    ranks = "".join(
        f'sglang:num_running_reqs{{dp_rank="{dp}",model_name="m",tp_rank="{tp}"}} {2 + dp}.0\n'
        f'sglang:num_queue_reqs{{dp_rank="{dp}",model_name="m",tp_rank="{tp}"}} 1.0\n'
        for dp in range(2)
        for tp in range(4)
    )
    assert _report(ranks) == EngineReport(running=2 + 3, waiting=2)


def test_an_engine_without_prefix_caching_keeps_no_prefixes() -> None:
    page = VLLM.replace('block_size="16"', 'block_size="16",enable_prefix_caching="False"')
    assert _report(page).cache_tokens == 0


def test_the_number_of_blocks_may_not_be_known_yet() -> None:
    assert _report(VLLM.replace('num_gpu_blocks="1000"', 'num_gpu_blocks="None"')).cache_tokens is None


def test_timestamps_tabs_exponents_and_the_first_line() -> None:
    page = "llamacpp:requests_processing\t2e0 1700000000000\nllamacpp:requests_deferred  7.0 1700000000000\n# EOF\n"
    assert _report(page) == EngineReport(running=2, waiting=7)


@pytest.mark.parametrize(
    ("page", "named"),
    [
        ("", "none of the names"),
        ("<!doctype html><title>hello</title>", "HTML or JSON"),
        ('{"error": "no"}', "HTML or JSON"),
        ("process_cpu_seconds_total 3\n", "none of the names"),
        (VLLM.replace("3.0", "NaN"), "num_requests_running is nan"),
        (VLLM.replace("3.0", "+Inf"), "num_requests_running is inf"),
        (VLLM.replace("3.0", "-1"), "num_requests_running is -1"),
        (VLLM.replace("3.0", "many"), "num_requests_running has no number"),
        (VLLM.replace(" 3.0", ""), "num_requests_running has no number"),
        (VLLM.replace("3.0", "1e12"), "num_requests_running is 1e+12"),
        (VLLM.replace("0.25", "NaN"), "kv_cache_usage_perc is nan"),
        ("vllm:num_requests_running 1\n", "num_requests_waiting is not"),
        ('vllm:num_requests_running{a="b" 1\n', "labels without an end"),
    ],
)
def test_what_is_no_report(page: str, named: str) -> None:
    with pytest.raises(NoReportError) as caught:
        read(page.encode())
    assert named in str(caught.value)


def test_what_was_found_last_time_is_looked_for_first_and_others_still_are() -> None:
    sglang = next(names for names in ENGINES if names.engine == "SGLang")
    both = VLLM + SGLANG
    assert read(both.encode())[0].engine == "vLLM"
    assert read(both.encode(), sglang)[0].engine == "SGLang"
    assert read(LLAMA.encode(), sglang)[0].engine == "llama.cpp"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:num_requests_runningx"]),
            st.text(st.characters(codec="ascii", exclude_categories=["C"], exclude_characters='"\\'), max_size=8),
            st.integers(0, 1000),
        ),
        max_size=12,
        unique_by=lambda sample: sample[:2],
    )
)
def test_it_reads_what_the_full_parser_reads(samples: list[tuple[str, str, int]]) -> None:
    page = "".join(f'{name}{{model_name="{label}"}} {value}\n' for name, label, value in samples)
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    if {"vllm:num_requests_running", "vllm:num_requests_waiting"} <= set(sums):
        report = _report(page)
        assert report.running == sums["vllm:num_requests_running"]
        assert report.waiting == sums["vllm:num_requests_waiting"]
    else:
        with pytest.raises(NoReportError):
            _report(page)
