"""A run as text: the block that `vllm bench serve` prints, then what is ours. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from headway.serving.loadgen.summary import Floats, Summary, mean, quantile

METRICS = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
}
"""As in vLLM's `--percentile-metrics`."""
DEFAULT_METRICS = ("ttft", "tpot", "itl")
WIDTH = 50


def result(
    summary: Summary,
    *,
    rate: float | None = None,
    metrics: Sequence[str] = DEFAULT_METRICS,
    percentiles: Sequence[float] = (99.0,),
) -> list[str]:
    """Lines that programs which read vLLM's block can read.

    Args:
        summary: of the run.
        rate: requests per second that were asked for; None: the line is left out.
        metrics: keys of `METRICS`, in order.
        percentiles: of each of them.
    """
    duration_s = summary.duration_s or float("inf")
    lines = [
        _title("Serving Benchmark Result", "="),
        _line("Successful requests:", summary.done),
        _line("Failed requests:", sum(summary.failures.values())),
    ]
    if rate is not None:
        lines.append(_line("Request rate configured (RPS):", rate))
    lines += [
        _line("Benchmark duration (s):", summary.duration_s),
        _line("Total input tokens:", summary.input_tokens),
        _line("Total generated tokens:", summary.output_tokens),
        _line("Request throughput (req/s):", summary.done / duration_s),
    ]
    if summary.good is not None:
        lines.append(_line("Request goodput (req/s):", summary.good / duration_s))
    lines += [
        _line("Output token throughput (tok/s):", summary.output_tokens / duration_s),
        _line("Peak output token throughput (tok/s):", float(summary.peak_output_rate)),
        _line("Peak concurrent requests:", float(summary.peak_streams)),
        _line("Total Token throughput (tok/s):", (summary.input_tokens + summary.output_tokens) / duration_s),
    ]
    measured = {"ttft": summary.ttft_s, "tpot": summary.tpot_s, "itl": summary.itl_s, "e2el": summary.e2e_s}
    for metric in metrics:
        name, title = METRICS[metric]
        lines += [_title(title, "-", spaces=False), *_latency(name, measured[metric], percentiles)]
    return [*lines, "=" * WIDTH]


def ours(summary: Summary) -> list[str]:
    """What vLLM's block does not say: the generator itself, the replicas, the failures."""
    lines = [
        _title("Generator", "-", spaces=False),
        _line("Requests sent:", f"{summary.sent} of {summary.requests}"),
        _line("Offered / sent rate (req/s):", f"{summary.offered_rate:.2f} / {summary.sent_rate:.2f}"),
        _line("Sent late, P50 / P99 (ms):", _pair(quantile(summary.late_s, 0.5), quantile(summary.late_s, 0.99))),
        _line("Own loop's lag, P99 / max (ms):", _pair(summary.lag_p99_s, summary.lag_max_s)),
    ]
    if summary.cached_tokens is not None and summary.input_tokens:
        share = summary.cached_tokens / summary.input_tokens
        lines.append(_line("Prompt tokens from prefix caches:", f"{summary.cached_tokens} ({share:.1%})"))
    if summary.shares:
        lines += [_title("Replicas", "-", spaces=False), *_replicas(summary)]
    if summary.reasons:
        lines.append(_title("Why there", "-", spaces=False))
        lines += [_line(f"{reason}:", count) for reason, count in summary.reasons.items()]
    if summary.failures or summary.stopped:
        lines.append(_title("Failures", "-", spaces=False))
        lines += [_line(f"{kind}:", count) for kind, count in summary.failures.items()]
        if summary.told_to_wait:
            lines.append(_line("429 and 503 with Retry-After:", _retry_after(summary)))
        if summary.stopped:
            lines.append(_line("stopped by us, or never sent:", summary.stopped))
    lines.append("=" * WIDTH)
    if summary.distorted:
        lines.append(f"The load generator was the bottleneck: {summary.distorted}.")
    return lines


def _latency(name: str, values_s: Floats, percentiles: Sequence[float]) -> list[str]:
    return [
        _line(f"Mean {name} (ms):", mean(values_s) * 1e3),
        _line(f"Median {name} (ms):", quantile(values_s, 0.5) * 1e3),
        *(_line(f"P{each:g} {name} (ms):", quantile(values_s, each / 100) * 1e3) for each in percentiles),
    ]


def _replicas(summary: Summary) -> list[str]:
    total = sum(share.requests for share in summary.shares)
    lines = []
    for share in summary.shares:
        text = f"{share.requests} ({share.requests / total:.1%}), mean TTFT {mean(share.ttft_s) * 1e3:.0f} ms"
        if summary.cached_tokens is not None and share.prompt_tokens:
            text += f", cached {share.cached_tokens / share.prompt_tokens:.1%}"
        if share.done < share.requests:
            text += f", {share.requests - share.done} failed"
        lines.append(_line(f"{share.replica}:", text))
    return lines


def _retry_after(summary: Summary) -> str:
    said = summary.retry_after_s
    if not len(said):
        return f"0 of {summary.told_to_wait}"
    return f"{len(said)} of {summary.told_to_wait}, {said.min():g} to {said.max():g} s"


def _title(text: str, fill: str, *, spaces: bool = True) -> str:
    return (f" {text} " if spaces else text).center(WIDTH, fill)


def _line(label: str, value: str | float) -> str:
    shown = f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{label:<40} {shown:<10}".rstrip()


def _pair(first_s: float, second_s: float) -> str:
    return f"{first_s * 1e3:.2f} / {second_s * 1e3:.2f}"
