"""What is sent: the body and the headers of one request. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from headway.serving.loadgen.text import prompt_of
from headway.serving.workload.arrival import Arrival

ENDPOINTS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


@dataclass(frozen=True, slots=True)
class Ask:
    """How requests are written.

    Attributes:
        model: its name on the server.
        endpoint: a key of `ENDPOINTS`.
        ignore_eos: ask for exactly the load's output tokens with `ignore_eos`, which vLLM and SGLang know.
        headers: to send with each request.
        slo_ttft_s, slo_tpot_s: goals, sent as `x-slo-ttft-ms` and `x-slo-tpot-ms`; None: none.
    """

    model: str
    endpoint: str = "chat"
    ignore_eos: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None

    @property
    def path(self) -> str:
        """Of the API."""
        return ENDPOINTS[self.endpoint]

    def body(self, arrival: Arrival) -> bytes:
        """The JSON of a request: temperature 0, streamed, with token counts in the end."""
        text = prompt_of(arrival)
        fields: dict[str, object] = {"model": self.model}
        if self.endpoint == "chat":
            fields["messages"] = [{"role": "user", "content": text}]
        else:
            fields["prompt"] = text
        fields |= {
            "max_tokens": arrival.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            fields["ignore_eos"] = True
        return json.dumps(fields).encode()

    def headers_of(self, arrival: Arrival) -> dict[str, str]:
        """Its headers. The session goes as `x-session-id`, which gateways with session affinity read."""
        headers = {"Content-Type": "application/json", **self.headers}
        if arrival.session:
            headers.setdefault("x-session-id", arrival.session)
        if self.slo_ttft_s is not None:
            headers["x-slo-ttft-ms"] = f"{self.slo_ttft_s * 1e3:g}"
        if self.slo_tpot_s is not None:
            headers["x-slo-tpot-ms"] = f"{self.slo_tpot_s * 1e3:g}"
        return headers
