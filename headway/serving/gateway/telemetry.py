"""The gateway's own metrics, for Prometheus.

They are made from the same records as the journal, by `Telemetry.record`, and from the fleet's state when they are
asked for: so the two cannot disagree, and a request costs one call. Labels come from bounded sets: a model that no
replica serves is `other`, and so is whatever comes after `MOST_NAMES` values of one label.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

from headway.decide.journal import Record, RequestRecord, ServingRecord
from headway.serving.replica import ReplicaState

OTHER: Final = "other"
MOST_NAMES = 200
MOST_LEFT = 1000  # replicas that left, the last ones, whose requests may still be in flight

TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 30, 60, 120)
TPOT_BUCKETS_S = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1)
E2E_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 45, 60, 120, 240, 600)
ADDED_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.1, 0.5)
ERROR_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 16)
RATIO_BUCKETS = (0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)


@dataclass(frozen=True)
class Now:
    """What is true at the moment that the metrics are asked for.

    Attributes:
        replicas: the fleet.
        taking: names of those that take requests: the others' circuit breakers are open.
        open_requests: requests that the gateway is answering (count).
        scrape_failures: failed questions for a replica's metrics since the start, by kind.
        journal_dropped: records that the journal had to leave out since the start.
        spans_dropped: spans that tracing had to leave out since the start.
    """

    replicas: Iterable[ReplicaState] = ()
    taking: frozenset[str] = frozenset()
    open_requests: int = 0
    scrape_failures: Mapping[str, int] = field(default_factory=dict)
    journal_dropped: int = 0
    spans_dropped: int = 0


class Telemetry:
    """Counts, and shows the counts. For one thread.

    Attributes:
        registry: holds these metrics and no others.
    """

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry(auto_describe=True)
        prefix = "headway_gateway"

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"{prefix}_{name}", what, labels, registry=registry)

        def gauge(name: str, what: str, *labels: str) -> Gauge:
            return Gauge(f"{prefix}_{name}", what, labels, registry=registry)

        def histogram(name: str, what: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"{prefix}_{name}", what, labels, buckets=buckets, registry=registry)

        self._requests = counter("requests", "Requests that ended.", "model", "replica", "code")
        self._refused = counter("refused", "Requests that the gateway itself turned away.", "reason")
        self._cancelled = counter("cancelled", "Requests whose client went away.", "model")
        self._retries = counter("retries", "Attempts after a request's first.", "model")
        self._decisions = counter("decisions", "Choices of a replica, by the rule that made them.", "policy", "rule")
        self._tokens = counter(
            "tokens", "Tokens of prompts, of these expected in and found in prefix caches, of answers.", "model", "kind"
        )
        self._ttft = histogram("ttft_seconds", "Arrival to first token.", TTFT_BUCKETS_S, "model", "replica")
        self._tpot = histogram("tpot_seconds", "Time per token after the first.", TPOT_BUCKETS_S, "model")
        self._e2e = histogram("e2e_seconds", "Arrival to end, of requests that were answered.", E2E_BUCKETS_S, "model")
        self._added = histogram(
            "added_seconds", "Arrival to sending, of requests that needed one attempt.", ADDED_BUCKETS_S
        )
        self._error = histogram(
            "ttft_prediction_error_seconds",
            "How far the predicted TTFT was off, without its sign.",
            ERROR_BUCKETS_S,
            "rule",
        )
        self._ratio = histogram("ttft_actual_to_predicted_ratio", "Actual over predicted TTFT.", RATIO_BUCKETS, "rule")
        self._events = counter("fleet_events", "Changes of the fleet and of its policy, as in the journal.", "event")
        self._trusted = gauge("learned_trusted", "1: the learned policy routes; 0: the guard-rail fell back.", "group")
        self._version = gauge("model_version", "How many models have been put into force.", "group")
        self._samples = gauge("model_training_samples", "Requests that the model in force was trained on.", "group")
        self._open = gauge("open_requests", "Requests being answered.")
        self._up = gauge("replica_up", "1: the replica takes requests; 0: its circuit breaker is open.", "replica")
        self._age = gauge("replica_report_age_seconds", "Age of its engine's own figures; NaN: none.", "replica")
        self._in_flight = gauge("replica_requests", "Sent and not ended.", "replica", "phase")
        self._running = gauge("replica_engine_requests", "As its engine says.", "replica", "state")
        self._kv = gauge("replica_kv_usage_ratio", "As its engine says.", "replica")
        self._scrapes = gauge("scrape_failures", "Failed questions for engines' metrics.", "kind")
        self._dropped = gauge("journal_dropped_records", "Records that the journal left out.")
        self._spans = gauge("dropped_spans", "Spans that tracing left out.")
        self._models: frozenset[str] = frozenset()
        self._names: dict[str, set[str]] = {}
        self._left: dict[str, None] = {}
        self._children: dict[tuple[str, str, int], _Children] = {}

    def know(self, models: Iterable[str]) -> None:
        """The models that are served. Call it when they change; one that is gone keeps its label."""
        for name in models:
            if self._bounded("model", name) != OTHER:
                self._models |= {name}

    def refused(self, reason: str) -> None:
        """The gateway turned a request away, for one of the reasons that its code names."""
        self._refused.labels(self._bounded("reason", reason)).inc()

    def unrouted(self, status: int, model: str = "") -> None:
        """A request ended that never came to a router, and so has no record: without a key, too large, malformed."""
        self._requests.labels(self._model(model), "", str(status)).inc()

    def learns(self, group: str, samples: int) -> None:
        """A pool's learned policy begins: trusted, with a model learnt from so many samples; 0: with none."""
        group = self._bounded("group", group)
        self._trusted.labels(group).set(1)
        self._version.labels(group).set(samples > 0)
        self._samples.labels(group).set(samples)

    def learns_no_more(self, group: str) -> None:
        """A pool has another policy now."""
        for gauge in (self._trusted, self._version, self._samples):
            gauge.remove_by_labels({"group": group})

    def record(self, record: Record) -> None:
        """Take in what goes into the journal."""
        if isinstance(record, RequestRecord):
            self._request(record)
        elif isinstance(record, ServingRecord):
            self._serving(record)

    def page(self, now: Now, accept: str = "") -> tuple[bytes, str]:
        """The metrics as text, and its content type: OpenMetrics where `accept` asks for it."""
        self._open.set(now.open_requests)
        self._dropped.set(now.journal_dropped)
        self._spans.set(now.spans_dropped)
        for kind, count in now.scrape_failures.items():
            self._scrapes.labels(kind).set(count)
        for gauge in (self._up, self._age, self._in_flight, self._running, self._kv):
            gauge.clear()  # a replica that has gone must not be shown for ever
        for state in now.replicas:
            self._replica(state, state.name in now.taking)
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def _replica(self, state: ReplicaState, up: bool) -> None:
        name = state.name
        self._up.labels(name).set(up)
        self._age.labels(name).set(state.report_age_s if isfinite(state.report_age_s) else float("nan"))
        self._in_flight.labels(name, "prefill").set(state.prefill_requests)
        self._in_flight.labels(name, "decode").set(state.decode_requests)
        if state.report is not None:
            self._running.labels(name, "running").set(state.report.running)
            self._running.labels(name, "waiting").set(state.report.waiting)
            if state.report.kv_usage is not None:
                self._kv.labels(name).set(state.report.kv_usage)

    def _request(self, record: RequestRecord) -> None:
        key = record.group, record.replica, record.status
        children = self._children.get(key)
        if children is None:
            children = self._children_of(*key)
        children.requests.inc()
        if record.end == "cancelled":
            children.cancelled.inc()
        if record.attempts > 1:
            children.retries.inc(record.attempts - 1)
        if record.by:
            self._decisions.labels(self._bounded("policy", record.policy), self._bounded("rule", record.by)).inc()
        if record.end == "refused":
            return
        children.prompt.inc(record.input_tokens)
        children.expected.inc(record.hit_tokens or 0)
        children.cached.inc(record.cached_tokens or 0)
        children.answer.inc(record.output_tokens)
        if record.sent_s is not None and record.attempts == 1:
            self._added.observe(record.sent_s)
        if record.ttft_s is not None:
            children.ttft.observe(record.ttft_s)
            if record.end == "done":
                children.e2e.observe(record.e2e_s)
                if record.output_tokens > 1:
                    children.tpot.observe((record.e2e_s - record.ttft_s) / (record.output_tokens - 1))
            if record.predicted_ttft_s is not None and record.sent_s is not None:
                actual_s = record.ttft_s - record.sent_s  # a prediction counts from the sending
                rule = self._bounded("rule", record.by)
                self._error.labels(rule).observe(abs(actual_s - record.predicted_ttft_s))
                if record.predicted_ttft_s > 0:
                    self._ratio.labels(rule).observe(actual_s / record.predicted_ttft_s)

    def _serving(self, record: ServingRecord) -> None:
        self._events.labels(record.event).inc()
        if record.event == "leave":
            self._forget(record.replica)
        elif record.event == "join":
            self._left.pop(record.replica, None)
        group = self._bounded("group", record.group)
        if record.event in ("fall-back", "trust"):
            self._trusted.labels(group).set(record.event == "trust")
        elif record.event == "model" and record.samples is not None:  # without them it is about trouble in training
            self._version.labels(group).inc()
            self._samples.labels(group).set(record.samples)

    def _forget(self, replica: str) -> None:
        """A replica has left: pods get new names with each roll-out, and their metrics must not pile up.

        What was in flight there ends later, as `other`.
        """
        self._left[replica] = None
        if len(self._left) > MOST_LEFT:
            del self._left[next(iter(self._left))]
        self._names.get("replica", set()).discard(replica)
        for model, _, status in [key for key in self._children if key[1] == replica]:
            del self._children[model, replica, status]
            self._requests.remove(model, replica, str(status))
            if not any(key[:2] == (model, replica) for key in self._children):
                self._ttft.remove(model, replica)

    def _children_of(self, group: str, replica: str, status: int) -> _Children:
        model = self._model(group)
        if replica:
            replica = OTHER if replica in self._left else self._bounded("replica", replica)
        key = model, replica, status
        if key not in self._children:
            self._children[key] = _Children(
                requests=self._requests.labels(model, replica, str(status)),
                cancelled=self._cancelled.labels(model),
                retries=self._retries.labels(model),
                prompt=self._tokens.labels(model, "prompt"),
                expected=self._tokens.labels(model, "prompt_expected_in_cache"),
                cached=self._tokens.labels(model, "prompt_found_in_cache"),
                answer=self._tokens.labels(model, "answer"),
                ttft=self._ttft.labels(model, replica),
                tpot=self._tpot.labels(model),
                e2e=self._e2e.labels(model),
            )
        return self._children[key]

    def _model(self, name: str) -> str:
        return name if name in self._models else OTHER

    def _bounded(self, label: str, value: str) -> str:
        known = self._names.setdefault(label, set())
        if value not in known:
            if len(known) >= MOST_NAMES:
                return OTHER
            known.add(value)
        return value


@dataclass(frozen=True, slots=True)
class _Children:
    """The metrics of one model, replica and status, looked up once."""

    requests: Counter
    cancelled: Counter
    retries: Counter
    prompt: Counter
    expected: Counter
    cached: Counter
    answer: Counter
    ttft: Histogram
    tpot: Histogram
    e2e: Histogram
