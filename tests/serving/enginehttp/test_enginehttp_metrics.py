"""The engine's metrics page as Prometheus reads it."""

from __future__ import annotations

import asyncio

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from headway.serving.enginehttp.measures import Histogram
from tests.fakes.engine import engines

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_page_counts_what_was_asked() -> None:
    async def check() -> None:
        model = 'a "quoted" \\ name'
        async with engines(model=model) as [engine], aiohttp.ClientSession() as session:

            async def page() -> Samples:
                async with session.get(f"{engine.url}/metrics") as response:
                    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                    return read(await response.text())

            for _ in range(2):
                body = {"prompt": list(range(100)), "max_tokens": 5}
                async with session.post(f"{engine.url}/v1/completions", json=body) as response:
                    assert response.status == 200
            async with session.post(f"{engine.url}/v1/completions", json={"prompt": "x"}) as response:
                assert response.status == 200
            samples = await page()
            labels = (("engine", "0"), ("model_name", model))
            assert {name: samples[name, labels] for name, its in samples if its == labels if "_sum" not in name} == {
                "vllm:num_requests_running": 0,
                "vllm:num_requests_waiting": 0,
                "vllm:kv_cache_usage_perc": 0,
                "vllm:prompt_tokens_total": 201,
                "vllm:generation_tokens_total": 18,
                "vllm:prefix_cache_queries_total": 201,
                "vllm:prefix_cache_hits_total": 96,
                "vllm:num_preemptions_total": 0,
                "vllm:time_to_first_token_seconds_count": 3,
                "vllm:inter_token_latency_seconds_count": 15,
                "vllm:e2e_request_latency_seconds_count": 3,
                "headway_engine_behind_seconds": samples["headway_engine_behind_seconds", labels],
                "headway_engine_lost_seconds_total": 0,
            }
            ended = {
                dict(its)["finished_reason"]: value
                for (name, its), value in samples.items()
                if name == "vllm:request_success_total"
            }
            assert ended == {"stop": 1, "length": 2, "abort": 0, "error": 0}
            [config] = [dict(its) for name, its in samples if name == "vllm:cache_config_info"]
            assert (config["num_gpu_blocks"], config["block_size"]) == ("4096", "16")

    asyncio.run(check())


def test_the_page_shows_the_batch_and_the_queue() -> None:
    async def check() -> None:
        async with engines(most_running=2) as [engine], aiohttp.ClientSession() as session:
            engine.engine.set_faults(stall=True)
            body = {"prompt": [1] * 160, "max_tokens": 2}
            tasks = [asyncio.create_task(session.post(f"{engine.url}/v1/completions", json=body)) for _ in range(5)]
            while engine.open < 5:
                await asyncio.sleep(0.002)
            report = engine.engine.answering.core.report()
            async with session.get(f"{engine.url}/metrics") as response:
                samples = {name: value for (name, _), value in read(await response.text()).items()}
            assert samples["vllm:num_requests_running"] == report.running
            assert samples["vllm:num_requests_waiting"] == report.waiting
            assert report.running + report.waiting == 5
            assert report.running in (1, 2)
            assert samples["vllm:kv_cache_usage_perc"] == report.kv_usage
            assert report.kv_usage
            engine.engine.set_faults(stall=False)
            assert [response.status for response in await asyncio.gather(*tasks)] == [200] * 5

    asyncio.run(check())


def test_a_histogram_counts_up_to_each_limit() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.add(value)
    assert histogram.lines("x", 'a="b"') == [
        'x_bucket{a="b",le="1.0"} 2',
        'x_bucket{a="b",le="2.0"} 3',
        'x_bucket{a="b",le="+Inf"} 4',
        'x_count{a="b"} 4',
        'x_sum{a="b"} 12.0',
    ]
