"""`headway loadgen`: open-loop load on an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import math
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import aiohttp
import typer

from headway.cluster.units import parse_time
from headway.errors import HeadwayError, UsageError
from headway.serving.loadgen import printed
from headway.serving.loadgen.ask import ENDPOINTS, Ask
from headway.serving.loadgen.client import Limits, base_url
from headway.serving.loadgen.plan import Wanted, plan
from headway.serving.loadgen.row import to_line
from headway.serving.loadgen.run import Outcome, Progress, in_loop, run
from headway.serving.loadgen.summary import Summary, summarize
from headway.serving.loadgen.there import Patience, model_there
from headway.serving.workload import arrivals as processes
from headway.serving.workload import mooncake, named


def loadgen(
    url: Annotated[str, typer.Argument(metavar="URL", help="The server, such as http://127.0.0.1:8000.")],
    load: Annotated[str, typer.Option(help=f"{', '.join(named.NAMES)}, or a Mooncake trace FILE.jsonl.")],
    model: Annotated[str, typer.Option(help="The model's name. [default: the server's only one]")] = "",
    rate: Annotated[float | None, typer.Option(help="Requests per second in the mean.")] = None,
    requests: Annotated[int | None, typer.Option(help="How many. [default: 100, or all of a trace]")] = None,
    arrivals: Annotated[
        str,
        typer.Option(help="poisson, bursty:CV, on-off:SHARE, constant, trace. [default: poisson; of a file: trace]"),
    ] = "",
    time_scale: Annotated[float | None, typer.Option(help="Make a trace's gaps so many times as long.")] = None,
    rate_step: Annotated[str, typer.Option(metavar="TIME:FACTOR", help="60s:2: twice the rate after a minute.")] = "",
    seed: Annotated[int, typer.Option(help="Of prompts and times.")] = 0,
    endpoint: Annotated[str, typer.Option(help="chat or completions.")] = "chat",
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Ask vLLM or SGLang for all output tokens.")] = False,
    limit_in: Annotated[int | None, typer.Option(help="Cut prompts to so many tokens.")] = None,
    limit_out: Annotated[int | None, typer.Option(help="Ask for at most so many tokens.")] = None,
    header: Annotated[list[str] | None, typer.Option(metavar="NAME:VALUE", help="Sent along; repeatable.")] = None,
    slo_ttft: Annotated[str, typer.Option(metavar="TIME", help="Goal for goodput, sent along too: 2s.")] = "",
    slo_tpot: Annotated[str, typer.Option(metavar="TIME", help="Goal for goodput, sent along too: 50ms.")] = "",
    slo_e2e: Annotated[str, typer.Option(metavar="TIME", help="Goal for goodput.")] = "",
    percentile_metrics: Annotated[str, typer.Option(help=f"Of {', '.join(printed.METRICS)}.")] = ",".join(
        printed.DEFAULT_METRICS
    ),
    metric_percentiles: Annotated[str, typer.Option(help="Such as 50,90,99.")] = "99",
    connect_limit: Annotated[str, typer.Option(metavar="TIME", help="For a connection.")] = "10s",
    stall_limit: Annotated[str, typer.Option(metavar="TIME", help="For the next byte of an answer.")] = "2min",
    limit: Annotated[str, typer.Option(metavar="TIME", help="For a whole answer.")] = "10min",
    wait: Annotated[str, typer.Option(metavar="TIME", help="For a server that starts; 0: not at all.")] = "10s",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="One JSON line per request.")] = None,
    save_load: Annotated[Path | None, typer.Option(metavar="FILE", help="The load as a Mooncake trace.")] = None,
) -> None:
    """Send requests at their times, however slow the answers are, and print what `vllm bench serve` prints."""
    wanted = Wanted(
        load=load,
        rate=_above_zero(rate, "--rate"),
        requests=requests,
        process=processes.parse(arrivals, where="--arrivals") if arrivals else None,
        time_scale=_above_zero(time_scale, "--time-scale"),
        seed=_seed(seed),
        step=_step(rate_step),
        most_input_tokens=_positive(limit_in, "--limit-in"),
        most_output_tokens=_positive(limit_out, "--limit-out"),
    )
    goals = _Goals(*(_time(text, name) for text, name in _named(slo_ttft=slo_ttft, slo_tpot=slo_tpot, slo_e2e=slo_e2e)))
    metrics, percentiles = _metrics(percentile_metrics), _percentiles(metric_percentiles)
    if endpoint not in ENDPOINTS:
        raise UsageError(f"unknown endpoint {endpoint!r}", where="--endpoint", hint=", ".join(ENDPOINTS))
    limits = Limits(
        connect_s=_limit(connect_limit, "--connect-limit"),
        stall_s=_limit(stall_limit, "--stall-limit"),
        total_s=_limit(limit, "--limit"),
    )
    patience = Patience(wait_s=0.0 if wait.strip() == "0" else parse_time(wait, where="--wait"), told=_tell)
    server, headers = base_url(url), _headers(header or [])
    planned = plan(wanted)
    if save_load is not None:
        _write(save_load, mooncake.write(planned), "--save-load")
    if out is not None:
        _write(out, "", "--out")  # found out now and not after an hour

    async def main() -> Outcome:
        async with aiohttp.ClientSession(headers=headers) as session:
            name = await model_there(session, server, model, patience)
        ask = Ask(
            model=name,
            endpoint=endpoint,
            ignore_eos=ignore_eos,
            headers=headers,
            slo_ttft_s=goals.ttft_s,
            slo_tpot_s=goals.tpot_s,
        )
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
        tell = _show if sys.stderr.isatty() else None
        return await run(planned, ask, server, limits=limits, stop=stop, each_second=tell)

    outcome = in_loop(main)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    if out is not None:  # before all else: a second Ctrl-C must not cost the rows
        _write(out, "".join(f"{to_line(row)}\n" for row in outcome.rows), "--out")
    summary = summarize(
        outcome.rows,
        duration_s=outcome.duration_s,
        lag_s=outcome.lag_s,
        slo_ttft_s=goals.ttft_s,
        slo_tpot_s=goals.tpot_s,
        slo_e2e_s=goals.e2e_s,
    )
    print("\n".join(printed.result(summary, rate=rate, metrics=metrics, percentiles=percentiles)))
    print("\n".join(printed.ours(summary)))
    _judge(summary, outcome)


@dataclass(frozen=True, slots=True)
class _Goals:
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None


def _judge(summary: Summary, outcome: Outcome) -> None:
    """HeadwayError, and so exit code 1, where the run did not come to its end or nothing succeeded."""
    if outcome.stopped:
        raise HeadwayError(f"stopped after {summary.sent} of {summary.requests} requests; the figures are of these")
    if not summary.done:
        first = next(row for row in outcome.rows if row.what or row.end)
        raise HeadwayError(f"no request succeeded; the first one: {first.end}: {first.what}")


def _tell(line: str) -> None:
    print(f"headway: {line}", file=sys.stderr, flush=True)


def _show(progress: Progress) -> None:
    open_ = progress.sent - progress.ended
    print(f"\r{progress.sent} of {progress.requests} sent, {open_} open ", end="", file=sys.stderr, flush=True)


def _named(**texts: str) -> list[tuple[str, str]]:
    return [(text, f"--{name.replace('_', '-')}") for name, text in texts.items()]


def _time(text: str, where: str) -> float | None:
    return _limit(text, where) if text else None


def _limit(text: str, where: str) -> float:
    """Seconds above 0: for HTTP's clients 0 would be no limit at all, and a goal of 0 nobody can meet."""
    limit_s = parse_time(text, where=where)
    if limit_s <= 0:
        raise UsageError(f"{text!r} is no time to wait", where=where)
    return limit_s


def _above_zero(value: float | None, where: str) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise UsageError(f"{value:g} is no number above 0", where=where)
    return value


def _seed(value: int) -> int:
    if value < 0:
        raise UsageError(f"{value} is below 0", where="--seed")
    return value


def _positive(value: int | None, where: str) -> int | None:
    if value is not None and value < 1:
        raise UsageError(f"{value} tokens are none", where=where)
    return value


def _step(text: str) -> tuple[float, float] | None:
    if not text:
        return None
    time, _, factor = text.partition(":")
    try:
        number = float(factor)
    except ValueError:
        raise UsageError(f"{text!r} has no factor", where="--rate-step", hint="write for example 60s:2") from None
    if not 0 < number < math.inf:
        raise UsageError(f"the factor in {text!r} is no number above 0", where="--rate-step")
    return parse_time(time, where="--rate-step"), number


def _headers(texts: list[str]) -> dict[str, str]:
    headers = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not name.strip() or any(ord(each) < 32 for each in text):
            raise UsageError(f"{text!r} is no header", where="--header", hint="write NAME:VALUE")
        headers[name.strip()] = value.strip()
    return headers


def _metrics(text: str) -> list[str]:
    metrics = [each.strip() for each in text.split(",")]
    for metric in metrics:
        if metric not in printed.METRICS:
            raise UsageError(
                f"unknown metric {metric!r}", where="--percentile-metrics", hint=", ".join(printed.METRICS)
            )
    return metrics


def _percentiles(text: str) -> list[float]:
    try:
        percentiles = [float(each) for each in text.split(",")]
    except ValueError:
        raise UsageError(f"{text!r} are no percentiles", where="--metric-percentiles", hint="such as 50,99") from None
    if not all(0 <= each <= 100 for each in percentiles):
        raise UsageError(f"a percentile in {text!r} is not from 0 to 100", where="--metric-percentiles")
    return percentiles


def _write(path: Path, text: str, where: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", where=where) from None
