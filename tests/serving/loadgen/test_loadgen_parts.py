"""The load generator's pure parts: texts, bodies, answers, rows, figures."""

from __future__ import annotations

import json
from array import array
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import UsageError
from headway.serving.loadgen import printed
from headway.serving.loadgen.answer import Answer, BrokenAnswerError
from headway.serving.loadgen.ask import Ask
from headway.serving.loadgen.client import base_url, retry_after_s
from headway.serving.loadgen.plan import Wanted, plan
from headway.serving.loadgen.row import Row, to_line
from headway.serving.loadgen.summary import summarize
from headway.serving.loadgen.text import WORDS, block_text, prompt_of
from headway.serving.workload import mooncake, named
from headway.serving.workload.arrival import Arrival
from headway.serving.workload.arrivals import Process


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def chat(content: str, finish: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": content}, "finish_reason": finish}])


def new_row() -> Row:
    return Row(number=0, due_s=0.0, input_tokens=10, output_tokens=5)


# Texts and bodies


def test_there_is_a_different_word_for_each_byte() -> None:
    assert len(set(WORDS)) == 256


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=5), st.integers(1, 16))
def test_prompts_have_a_word_per_token_and_share_what_their_blocks_share(ids: list[int], part: int) -> None:
    arrival = Arrival(0.0, (len(ids) - 1) * 16 + part, 1, tuple(ids), 16)
    words = prompt_of(arrival).split(" ")
    assert len(words) == arrival.input_tokens
    longer = Arrival(0.0, arrival.input_tokens - part + 32, 1, (*ids, 2**41), 16)
    assert prompt_of(longer).split(" ")[: len(words)] == words


def test_a_blocks_text_is_the_same_for_ever() -> None:
    assert block_text(46, 4) == "short part process support"
    assert block_text(46, 4) == " ".join(block_text(46, 8).split()[:4])
    assert block_text(46, 16) != block_text(47, 16)


def test_bodies_of_chat_and_completions() -> None:
    arrival = Arrival(0.0, 20, 7, (1, 2), 16, "s5")
    ask = Ask(model="m", headers={"Authorization": "Bearer k"}, slo_ttft_s=2.0, slo_tpot_s=0.05)
    body = json.loads(ask.body(arrival))
    assert body["messages"] == [{"role": "user", "content": prompt_of(arrival)}]
    assert (body["max_tokens"], body["stream"], body["stream_options"]) == (7, True, {"include_usage": True})
    assert "ignore_eos" not in body
    assert ask.headers_of(arrival) == {
        "Content-Type": "application/json",
        "Authorization": "Bearer k",
        "x-session-id": "s5",
        "x-slo-ttft-ms": "2000",
        "x-slo-tpot-ms": "50",
    }
    plain = Ask(model="m", endpoint="completions", ignore_eos=True)
    assert plain.path == "/v1/completions"
    assert json.loads(plain.body(arrival))["prompt"] == prompt_of(arrival)
    assert json.loads(plain.body(arrival))["ignore_eos"] is True


# Answers

STREAM = (
    event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}], usage=None)
    + chat("a")
    + chat("b")
    + chat("", "stop")
    + event(
        choices=[], usage={"prompt_tokens": 12, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}
    )
    + b": a comment\n\ndata: [DONE]\n\n"
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12), st.booleans())
def test_an_answer_is_read_the_same_however_it_is_cut(cuts: list[int], windows: bool) -> None:
    stream = STREAM.replace(b"\n", b"\r\n") if windows else STREAM
    places = [0, *sorted(cuts), len(stream)]
    row = new_row()
    answer = Answer(row, 0.0)
    for begin, end in pairwise(places):
        answer.feed(stream[begin:end], 1.0)
    assert answer.complete
    assert (row.prompt_tokens, row.completion_tokens, row.cached_tokens) == (12, 2, 8)
    assert (row.ttft_s, list(row.gaps_s), row.last_s) == (1.0, [0.0], 1.0)


def test_times_are_of_chunks_with_output() -> None:
    row = new_row()
    answer = Answer(row, 10.0)
    answer.feed(event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}]), 10.5)
    answer.feed(event(choices=[{"index": 0, "text": "x"}]), 11.0)
    answer.feed(event(choices=[{"index": 0, "delta": {"reasoning_content": "y"}}]), 11.25)
    answer.feed(event(choices=[{"index": 0, "delta": {}, "finish_reason": "length"}]), 12.0)
    assert (row.ttft_s, list(row.gaps_s), row.last_s) == (1.0, [0.25], 1.25)
    assert answer.complete
    assert (row.generated_tokens, row.asked_tokens, row.tpot_s) == (2, 10, 0.25)


@pytest.mark.parametrize(
    ("chunk", "kind", "words"),
    [
        (b"data: {oops\n\n", "garbage", "not JSON"),
        (b"data: 7\n\n", "garbage", "no object"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "garbage", "not JSON"),
        (event(error={"message": "out of\nmemory"}), "error", "the server broke off: out of memory"),
        (b"x" * (4 * 2**20 + 1), "garbage", "a line of more than"),
    ],
)
def test_broken_answers(chunk: bytes, kind: str, words: str) -> None:
    with pytest.raises(BrokenAnswerError, match=words) as error:
        Answer(new_row(), 0.0).feed(chunk, 1.0)
    assert error.value.kind == kind


@given(st.binary(max_size=300))
def test_no_bytes_do_anything_but_count_or_break(data: bytes) -> None:
    row = new_row()
    with suppress(BrokenAnswerError):
        Answer(row, 0.0).feed(b"data: " + data + b"\n", 1.0)
    assert row.generated_tokens >= 0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2", 2.0),
        ("0.5", 0.5),
        ("-1", 0.0),
        ("", None),
        ("soon", None),
        ("inf", None),
        ("nan", None),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 40.0),
    ],
)
def test_retry_after(text: str, seconds: float | None) -> None:
    assert retry_after_s(text, 60.0) == seconds


def test_addresses() -> None:
    assert str(base_url("http://h:8000/v1/")) == "http://h:8000"
    assert str(base_url("https://h/api")) == "https://h/api"
    for endpoint in ("/v1/chat/completions", "/v1/models/"):
        with pytest.raises(UsageError, match=r"goes on behind /v1 .write http://h:8000\)"):
            base_url("http://h:8000" + endpoint)
    for wrong in ("h:8000", "ftp://h", "http://", "http://h:x"):
        with pytest.raises(UsageError):
            base_url(wrong)


# Plans


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    path.write_text(mooncake.write([Arrival(2.0 + k, 600, 50, (0, k + 1), 512) for k in range(5)]))
    return str(path)


def test_a_traces_own_times_start_at_zero_and_are_scaled(trace: str) -> None:
    assert [each.at_s for each in plan(Wanted(trace))] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert [each.at_s for each in plan(Wanted(trace, time_scale=0.5, requests=3))] == [0.0, 0.5, 1.0]
    assert plan(Wanted(trace, rate=5.0))[-1].at_s == 1.0
    stepped = plan(Wanted(trace, step=(2.0, 2.0)))
    assert [each.at_s for each in stepped] == [0.0, 1.0, 2.0, 2.5, 3.0]


def test_a_trace_with_other_arrivals_and_shorter_prompts(trace: str) -> None:
    made = plan(Wanted(trace, rate=10.0, process=Process("constant"), most_input_tokens=100, most_output_tokens=5))
    assert [each.at_s for each in made] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert {(each.input_tokens, each.output_tokens, each.block_ids) for each in made} == {(100, 5, (0,))}


def test_a_named_load_is_that_of_the_simulation() -> None:
    assert plan(Wanted("mixed", rate=3.0, seed=4)) == named.load("mixed", requests=100, rate=3.0, seed=4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"load": "mixed"}, "--rate: the load mixed needs a rate"),
        ({"load": "mixed", "rate": 1.0, "time_scale": 2.0}, "--time-scale: only a trace's"),
        ({"load": "nothing"}, "--load: there is no load and no file 'nothing'"),
        ({"rate": 1.0, "time_scale": 2.0}, "--rate and --time-scale"),
        ({"process": Process("poisson")}, "--rate: poisson arrivals need a rate"),
        ({"process": Process("poisson"), "time_scale": 2.0}, "--arrivals is poisson"),
        ({"requests": 6}, "the trace has only 5 requests"),
        ({"requests": 0}, "--requests: 0 requests"),
    ],
)
def test_what_does_not_go_together_is_said(trace: str, changes: dict[str, object], words: str) -> None:
    fields: dict[str, object] = {"load": trace, **changes}
    with pytest.raises(UsageError, match=words):
        plan(Wanted(**fields))  # type: ignore[arg-type]


# Figures


def done(number: int, sent_s: float, *, ttft_s: float = 0.5, tokens: int = 3, **fields: object) -> Row:
    row = Row(number=number, due_s=float(number), input_tokens=10, output_tokens=tokens, sent_s=sent_s, end="done")
    row.ttft_s, row.gaps_s = ttft_s, array("d", [0.1] * (tokens - 1))
    row.last_s = row.e2e_s = ttft_s + 0.1 * (tokens - 1)
    for name, value in fields.items():
        setattr(row, name, value)
    return row


def test_figures_counted_by_hand() -> None:
    rows = [
        done(0, 0.0, replica="a", reason="least loaded: 3 < 4.5", cached_tokens=5, prompt_tokens=20),
        done(1, 1.25, ttft_s=2.0, replica="b", reason="least loaded: 0 < 4", tokens=1),
        Row(2, 2.0, 10, 3, sent_s=2.0, end="http-429", status=429, retry_after_s=2.0, e2e_s=0.1),
        Row(3, 3.0, 10, 3, sent_s=3.0, end="http-429", status=429, e2e_s=0.1),
        Row(4, 4.0, 10, 3, sent_s=4.0, end="cut", status=200, replica="b", e2e_s=0.1),
        Row(5, 5.0, 10, 3),
    ]
    found = summarize(rows, duration_s=4.0, lag_s=[0.0, 0.002], slo_ttft_s=1.0, slo_tpot_s=0.2)
    assert (found.requests, found.sent, found.done, found.stopped) == (6, 5, 2, 1)
    assert found.failures == {"http-429": 2, "cut": 1}
    assert (found.input_tokens, found.output_tokens, found.cached_tokens) == (30, 4, 5)
    assert found.good == 1
    assert found.peak_streams == 2  # the second one is open while the third and the fourth come
    assert found.peak_output_rate == 3
    assert (found.told_to_wait, list(found.retry_after_s)) == (2, [2.0])
    assert found.reasons == {"least loaded: # < #": 2}
    assert [(share.replica, share.requests, share.done) for share in found.shares] == [("a", 1, 1), ("b", 2, 1)]
    assert list(found.late_s) == [0.0, 0.25, 0.0, 0.0, 0.0]
    assert "more than 240 ms late" in found.distorted
    assert not summarize(rows[:1], duration_s=1.0).distorted
    assert "event loop lagged by 30 ms" in summarize(rows[:1], duration_s=1.0, lag_s=[0.03]).distorted


def test_the_block_has_vllms_lines() -> None:
    found = summarize([done(0, 0.0), done(1, 1.0)], duration_s=2.0, slo_ttft_s=1.0)
    lines = printed.result(found, rate=1.0, metrics=("ttft", "e2el"), percentiles=(50, 99.9))
    assert lines == [
        "============ Serving Benchmark Result ============",
        "Successful requests:                     2",
        "Failed requests:                         0",
        "Request rate configured (RPS):           1.00",
        "Benchmark duration (s):                  2.00",
        "Total input tokens:                      20",
        "Total generated tokens:                  6",
        "Request throughput (req/s):              1.00",
        "Request goodput (req/s):                 1.00",
        "Output token throughput (tok/s):         3.00",
        "Peak output token throughput (tok/s):    3.00",
        "Peak concurrent requests:                1.00",
        "Total Token throughput (tok/s):          13.00",
        "---------------Time to First Token----------------",
        "Mean TTFT (ms):                          500.00",
        "Median TTFT (ms):                        500.00",
        "P50 TTFT (ms):                           500.00",
        "P99.9 TTFT (ms):                         500.00",
        "----------------End-to-end Latency----------------",
        "Mean E2EL (ms):                          700.00",
        "Median E2EL (ms):                        700.00",
        "P50 E2EL (ms):                           700.00",
        "P99.9 E2EL (ms):                         700.00",
        "==================================================",
    ]


def test_a_run_without_any_answer_is_printed_all_the_same() -> None:
    found = summarize([Row(0, 0.0, 10, 3)], duration_s=0.0)
    assert "Mean TTFT (ms):                          0.00" in printed.result(found)
    assert any("stopped by us" in line for line in printed.ours(found))


def test_a_row_as_a_line() -> None:
    fields = json.loads(to_line(done(3, 3.001, replica="a")))
    assert fields["late_s"] == 0.001
    assert (fields["end"], fields["replica"], fields["chunks"], fields["tpot_s"]) == ("done", "a", 3, 0.1)
    assert "status" not in fields
    assert "what" not in fields
