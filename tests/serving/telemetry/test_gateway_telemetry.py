"""The gateway's metrics, read back with Prometheus' own parser."""

from __future__ import annotations

import math
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from headway.decide.journal import RequestRecord, ServingRecord
from headway.serving.gateway.telemetry import MOST_NAMES, Now, Telemetry
from headway.serving.replica import EngineReport, ReplicaSpec, ReplicaState


def request(**more: Any) -> RequestRecord:
    given: dict[str, Any] = {
        "t_s": 12.0,
        "group": "m",
        "request": "r",
        "arrived_s": 10.0,
        "sent_s": 0.002,
        "replica": "a",
        "policy": "learned",
        "by": "learned",
        "input_tokens": 100,
        "hit_tokens": 64,
        "cached_tokens": 48,
        "output_tokens": 11,
        "predicted_ttft_s": 0.2,
        "ttft_s": 0.302,
        "e2e_s": 1.302,
        "status": 200,
        "end": "done",
        **more,
    }
    return RequestRecord.model_validate(given)


def change(event: str, **more: Any) -> ServingRecord:
    return ServingRecord.model_validate({"t_s": 1.0, "event": event, "what": event, **more})


def read(telemetry: Telemetry, now: Now | None = None) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    page, content_type = telemetry.page(now or Now())
    assert content_type.startswith("text/plain")
    return {
        (sample.name.removeprefix("headway_gateway_"), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def value(telemetry: Telemetry, name: str, now: Now | None = None, **labels: str) -> float | None:
    return read(telemetry, now).get((name, tuple(sorted(labels.items()))))


@pytest.fixture
def telemetry() -> Telemetry:
    made = Telemetry()
    made.know(["m"])
    return made


def test_a_request_that_was_answered(telemetry: Telemetry) -> None:
    telemetry.record(request())
    assert value(telemetry, "requests_total", model="m", replica="a", code="200") == 1
    assert value(telemetry, "ttft_seconds_sum", model="m", replica="a") == pytest.approx(0.302)
    assert value(telemetry, "ttft_seconds_bucket", model="m", replica="a", le="0.35") == 1
    assert value(telemetry, "ttft_seconds_bucket", model="m", replica="a", le="0.2") == 0
    assert value(telemetry, "tpot_seconds_sum", model="m") == pytest.approx(0.1)  # 10 tokens after the first in 1 s
    assert value(telemetry, "e2e_seconds_sum", model="m") == pytest.approx(1.302)
    assert value(telemetry, "added_seconds_sum") == pytest.approx(0.002)
    assert value(telemetry, "ttft_prediction_error_seconds_sum", rule="learned") == pytest.approx(0.1)
    assert value(telemetry, "ttft_actual_to_predicted_ratio_sum", rule="learned") == pytest.approx(1.5)
    assert value(telemetry, "decisions_total", policy="learned", rule="learned") == 1
    kinds = {"prompt": 100, "prompt_expected_in_cache": 64, "prompt_found_in_cache": 48, "answer": 11}
    for kind, tokens in kinds.items():
        assert value(telemetry, "tokens_total", model="m", kind=kind) == tokens


def test_retries_cancellations_failures_and_refusals(telemetry: Telemetry) -> None:
    telemetry.record(request(attempts=3, end="failed", status=502, ttft_s=None))
    telemetry.record(request(end="cancelled", status=499))
    telemetry.record(request(end="refused", status=429, replica="", by="", attempts=0, ttft_s=None))
    telemetry.refused("queue")
    telemetry.unrouted(401)
    assert value(telemetry, "retries_total", model="m") == 2
    assert value(telemetry, "cancelled_total", model="m") == 1
    assert value(telemetry, "refused_total", reason="queue") == 1
    assert value(telemetry, "requests_total", model="m", replica="", code="429") == 1
    assert value(telemetry, "requests_total", model="other", replica="", code="401") == 1
    assert value(telemetry, "e2e_seconds_count", model="m") == 0  # none was answered to its end
    assert value(telemetry, "added_seconds_count") == 1  # not of the one that was sent three times


def test_models_that_nobody_serves_make_no_labels(telemetry: Telemetry) -> None:
    for number in range(3 * MOST_NAMES):
        telemetry.record(request(group=f"made-up-{number}", replica=""))
        telemetry.unrouted(404, f"made-up-{number}")
    models = {dict(labels)["model"] for name, labels in read(telemetry) if name == "requests_total"}
    assert models == {"other"}
    assert value(telemetry, "requests_total", model="other", replica="", code="200") == 3 * MOST_NAMES


def test_names_beyond_the_bound_are_other() -> None:
    telemetry = Telemetry()
    telemetry.know(f"m{number}" for number in range(MOST_NAMES + 5))
    telemetry.record(request(group="m0"))
    telemetry.record(request(group=f"m{MOST_NAMES + 1}"))
    assert value(telemetry, "requests_total", model="m0", replica="a", code="200") == 1
    assert value(telemetry, "requests_total", model="other", replica="a", code="200") == 1


def test_pods_that_come_and_go_leave_nothing_behind(telemetry: Telemetry) -> None:
    for number in range(2 * MOST_NAMES):
        telemetry.record(request(replica=f"pod-{number}"))
        telemetry.record(change("leave", replica=f"pod-{number}"))
        telemetry.record(request(replica=f"pod-{number}"))  # was in flight, and ends later
    telemetry.record(request(replica="pod-new"))
    telemetry.record(change("join", replica="pod-3"))
    telemetry.record(request(replica="pod-3"))
    replicas = {dict(labels)["replica"] for name, labels in read(telemetry) if name == "requests_total"}
    assert replicas == {"pod-new", "pod-3", "other"}
    assert value(telemetry, "requests_total", model="m", replica="other", code="200") == 2 * MOST_NAMES
    assert value(telemetry, "ttft_seconds_count", model="m", replica="pod-0") is None


def test_the_fleet_at_the_moment_of_asking(telemetry: Telemetry) -> None:
    fresh = ReplicaState(
        ReplicaSpec("a"),
        prefill_requests=1,
        decode_requests=2,
        report=EngineReport(running=2, waiting=5, kv_usage=0.5),
        report_age_s=0.05,
    )
    now = Now(
        replicas=[fresh, ReplicaState(ReplicaSpec("b"))],
        taking=frozenset({"a"}),
        open_requests=4,
        scrape_failures={"timeout": 3},
        journal_dropped=7,
        spans_dropped=8,
    )
    assert value(telemetry, "replica_up", now, replica="a") == 1
    assert value(telemetry, "replica_up", now, replica="b") == 0
    assert value(telemetry, "replica_report_age_seconds", now, replica="a") == 0.05
    assert math.isnan(value(telemetry, "replica_report_age_seconds", now, replica="b") or 0.0)
    assert value(telemetry, "replica_requests", now, replica="a", phase="decode") == 2
    assert value(telemetry, "replica_engine_requests", now, replica="a", state="waiting") == 5
    assert value(telemetry, "replica_kv_usage_ratio", now, replica="a") == 0.5
    assert value(telemetry, "open_requests", now) == 4
    assert value(telemetry, "scrape_failures", now, kind="timeout") == 3
    assert value(telemetry, "journal_dropped_records", now) == 7
    assert value(telemetry, "dropped_spans", now) == 8
    assert value(telemetry, "replica_up", Now(), replica="a") is None  # it has gone


def test_the_learned_policys_guard_and_model(telemetry: Telemetry) -> None:
    telemetry.record(change("model", samples=500))
    telemetry.record(change("model", samples=1500))
    telemetry.record(change("model"))  # without samples: training had trouble
    telemetry.record(change("trust"))
    assert value(telemetry, "model_version", group="default") == 2
    assert value(telemetry, "model_training_samples", group="default") == 1500
    assert value(telemetry, "learned_trusted", group="default") == 1
    telemetry.record(change("fall-back", samples=400))
    assert value(telemetry, "learned_trusted", group="default") == 0
    assert value(telemetry, "fleet_events_total", event="fall-back") == 1


def test_openmetrics_where_it_is_asked_for(telemetry: Telemetry) -> None:
    telemetry.record(request())
    page, content_type = telemetry.page(Now(), "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    families = openmetrics(page.decode())  # type: ignore[no-untyped-call]
    assert any(family.name == "headway_gateway_requests" for family in families)
