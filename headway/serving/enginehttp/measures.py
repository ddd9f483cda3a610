"""What an engine counts, and its `/metrics` page under vLLM's names. Pure.

Names, labels and bucket limits are those of vLLM's v1 engine (vllm/v1/metrics/loggers.py). What the model does not know
(time in the queue, speculative decoding, adapters) is left out. Ours, and named so: `headway_engine_*`.

The page is put together by hand: a gateway reads it ten times a second, and a page of prometheus_client's making costs
twenty times as much.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from headway.serving.engine.types import EngineProfile
from headway.serving.replica import EngineReport

# fmt: off
TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
          160.0, 640.0, 2560.0)
INTER_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
                 80.0)
END_TO_END_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
                960.0, 1920.0, 7680.0)
# fmt: on
REASONS = ("stop", "length", "abort", "error")


class Histogram:
    """Counts by upper limit.

    Args:
        limits: upper limits of the buckets, rising.
    """

    def __init__(self, limits: Sequence[float]) -> None:
        self._limits = limits
        self._counts = [0] * (len(limits) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """One observation."""
        self._counts[bisect_left(self._limits, value)] += 1
        self._sum += value

    def lines(self, name: str, labels: str) -> list[str]:
        """Its samples."""
        lines, so_far = [], 0
        for limit, count in zip((*map(str, self._limits), "+Inf"), self._counts, strict=True):
            so_far += count
            lines.append(f'{name}_bucket{{{labels},le="{limit}"}} {so_far}')
        return [*lines, f"{name}_count{{{labels}}} {so_far}", f"{name}_sum{{{labels}}} {self._sum}"]


class Measures:
    """Counters of one engine, since it began.

    Args:
        model: label `model_name`.
        profile: what `cache_config_info` tells.

    Attributes:
        prompt_tokens: of prompts whose prefill has ended, cached ones included.
        generation_tokens: produced.
        queried_tokens, hit_tokens: looked for in the prefix cache, and found there.
        ended: requests by how they ended; "abort": the client went away.
    """

    def __init__(self, model: str, profile: EngineProfile) -> None:
        escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        self._labels = f'engine="0",model_name="{escaped}"'
        self._config = (
            f'block_size="{profile.block_tokens}",cache_dtype="auto",'
            f'enable_prefix_caching="{profile.prefix_caching}",engine="0",'
            f'num_gpu_blocks="{profile.cache_tokens // profile.block_tokens}"'
        )
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.queried_tokens = 0
        self.hit_tokens = 0
        self.ended = dict.fromkeys(REASONS, 0)
        self.ttft_s = Histogram(TTFT_S)
        self.inter_token_s = Histogram(INTER_TOKEN_S)
        self.end_to_end_s = Histogram(END_TO_END_S)

    def page(self, report: EngineReport, preemptions: int, behind_s: float, lost_s: float) -> str:
        """The text of `/metrics`."""
        labels = self._labels
        lines: list[str] = []

        def one(kind: str, name: str, help_: str, value: float, its: str = labels) -> None:
            sample = f"{name}_total" if kind == "counter" else name
            lines.extend((f"# HELP {sample} {help_}", f"# TYPE {sample} {kind}", f"{sample}{{{its}}} {value}"))

        one("gauge", "vllm:num_requests_running", "Requests in the batch.", report.running)
        one("gauge", "vllm:num_requests_waiting", "Requests in the queue.", report.waiting)
        one("gauge", "vllm:kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", report.kv_usage or 0.0)
        one("gauge", "vllm:cache_config_info", "How the KV cache is configured.", 1, self._config)
        one("counter", "vllm:prompt_tokens", "Prompt tokens prefilled.", self.prompt_tokens)
        one("counter", "vllm:generation_tokens", "Tokens produced.", self.generation_tokens)
        one("counter", "vllm:prefix_cache_queries", "Tokens looked for in the prefix cache.", self.queried_tokens)
        one("counter", "vllm:prefix_cache_hits", "Tokens found in the prefix cache.", self.hit_tokens)
        one("counter", "vllm:num_preemptions", "Requests put back for want of memory.", preemptions)
        name = "vllm:request_success_total"
        lines += [f"# HELP {name} Requests that have ended.", f"# TYPE {name} counter"]
        lines += [f'{name}{{{labels},finished_reason="{reason}"}} {count}' for reason, count in self.ended.items()]
        for name, help_, histogram in (
            ("vllm:time_to_first_token_seconds", "Time to the first token.", self.ttft_s),
            ("vllm:inter_token_latency_seconds", "Time from token to token.", self.inter_token_s),
            ("vllm:e2e_request_latency_seconds", "Time from request to last token.", self.end_to_end_s),
        ):
            lines += [f"# HELP {name} {help_}", f"# TYPE {name} histogram", *histogram.lines(name, labels)]
        one("gauge", "headway_engine_behind_seconds", "How late the last step ended.", behind_s)
        one(
            "counter",
            "headway_engine_lost_seconds",
            "Time by which the schedule was moved.",
            lost_s,
        )
        return "\n".join(lines) + "\n"
