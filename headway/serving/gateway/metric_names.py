"""What engines call their load in `/metrics`, and how it is read from there. Pure.

Names and labels are those in the engines' own documentation: vLLM ("Production Metrics"; the KV cache's share was
called `gpu_cache_usage_perc` before its V1 engine), SGLang ("Production Metrics", with `--enable-metrics`), llama.cpp's
server (with `--metrics`; the cache's share is gone from newer builds).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

from headway.serving.replica import EngineReport

RANK_LABELS = re.compile(rb'(?:tp_rank|pp_rank|moe_ep_rank|pid)="[^"]*",?')
"""Labels that tell apart workers that hold parts of one engine, each of which reports the whole: counted once."""
MOST_REQUESTS = 10_000_000  # in one engine; more is a number from somewhere else


class NoReportError(Exception):
    """A page does not say what an engine's load is; the text says why."""


@dataclass(frozen=True, slots=True)
class EngineNames:
    """The names of one kind of engine.

    Attributes:
        engine: for people.
        running: requests in the batch.
        waiting: requests in the queue.
        kv_usage: share of the KV cache in use, 0 to 1; the first one that is there counts.
        cache_tokens: tokens that the KV cache holds; empty where there is no such metric.
        cache_info: a metric that says it in its labels instead; empty where there is none.
    """

    engine: str
    running: bytes
    waiting: bytes
    kv_usage: tuple[bytes, ...]
    cache_tokens: bytes = b""
    cache_info: bytes = b""


ENGINES = (
    EngineNames(
        engine="vLLM",
        running=b"vllm:num_requests_running",
        waiting=b"vllm:num_requests_waiting",
        kv_usage=(b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"),
        cache_info=b"vllm:cache_config_info",
    ),
    EngineNames(
        engine="SGLang",
        running=b"sglang:num_running_reqs",
        waiting=b"sglang:num_queue_reqs",
        kv_usage=(b"sglang:token_usage",),
        cache_tokens=b"sglang:max_total_num_tokens",
    ),
    EngineNames(
        engine="llama.cpp",
        running=b"llamacpp:requests_processing",
        waiting=b"llamacpp:requests_deferred",
        kv_usage=(b"llamacpp:kv_cache_usage_ratio",),
    ),
)


def read(page: bytes, known: EngineNames | None = None) -> tuple[EngineNames, EngineReport]:
    """An engine's load, from its metrics page.

    Only the lines that are wanted are looked at: a vLLM page has several hundred, most of them buckets. Of several
    lines with one name (data-parallel engines behind one address) counts and sizes are added up, shares are averaged.

    Args:
        page: the page, in Prometheus' text format or OpenMetrics.
        known: the kind of engine that it was last time: looked for first.

    Returns:
        The kind of engine, and its load.

    Raises:
        NoReportError: the page is something else, is of no engine that is known, or has a value that cannot be.
    """
    for names in (known, *(each for each in ENGINES if each is not known)):
        if names is None:
            continue
        running = _count(page, names.running)
        if running is None:
            continue
        waiting = _count(page, names.waiting)
        if waiting is None:
            raise NoReportError(f"{_text(names.running)} is there, {_text(names.waiting)} is not")
        usages: list[float] = next((found for name in names.kv_usage if (found := _values(page, name))), [])
        return names, EngineReport(
            running=running,
            waiting=waiting,
            kv_usage=min(1.0, sum(usages) / len(usages)) if usages else None,
            cache_tokens=_cache_tokens(page, names),
        )
    if page.lstrip()[:1] in (b"<", b"{"):
        raise NoReportError("the page is HTML or JSON, not metrics")
    raise NoReportError("none of the names of vLLM, SGLang or llama.cpp is on the page")


def _lines(page: bytes, name: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(labels, value) of each sample with this name."""
    start = 0 if page.startswith(name) else page.find(b"\n" + name) + 1
    first = start == 0 and page.startswith(name)
    while first or start > 0:
        first = False
        end = page.find(b"\n", start)
        line = page[start + len(name) : end if end >= 0 else len(page)]
        if line[:1] == b"{":
            labels, found, value = line[1:].rpartition(b"}")
            if not found:
                raise NoReportError(f"{_text(name)} has labels without an end")
            yield labels, value
        elif line[:1] in (b" ", b"\t"):
            yield b"", line
        start = page.find(b"\n" + name, start) + 1


def _values(page: bytes, name: bytes) -> list[float]:
    """The value for each set of labels."""
    found: dict[bytes, float] = {}
    for labels, text in _lines(page, name):
        try:
            value = float(text.split(None, 1)[0])
        except (ValueError, IndexError):
            raise NoReportError(f"{_text(name)} has no number") from None
        if not isfinite(value) or value < 0:
            raise NoReportError(f"{_text(name)} is {value}")
        key = RANK_LABELS.sub(b"", labels) if labels else labels
        found[key] = max(value, found.get(key, 0.0))
    return list(found.values())


def _count(page: bytes, name: bytes) -> int | None:
    values = _values(page, name)
    total = sum(values)
    if total > MOST_REQUESTS:
        raise NoReportError(f"{_text(name)} is {total:g}")
    return round(total) if values else None


def _cache_tokens(page: bytes, names: EngineNames) -> int | None:
    """Size of the prefix cache: 0 where the engine says that it keeps none."""
    if names.cache_tokens:
        values = _values(page, names.cache_tokens)
        return round(sum(values)) if values and sum(values) > 0 else None
    total = 0
    for labels, _ in _lines(page, names.cache_info) if names.cache_info else ():
        if _label(labels, b"enable_prefix_caching") == b"False":
            return 0
        blocks, block_tokens = _label(labels, b"num_gpu_blocks"), _label(labels, b"block_size")
        if blocks.isdigit() and block_tokens.isdigit():
            total += int(blocks) * int(block_tokens)
    return total or None


def _label(labels: bytes, name: bytes) -> bytes:
    """A label's value; empty where it is not there."""
    start = (b"," + labels).find(b"," + name + b'="')
    return labels[start + len(name) + 2 :].partition(b'"')[0] if start >= 0 else b""


def _text(name: bytes) -> str:
    return name.decode()
