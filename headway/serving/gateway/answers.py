"""What the gateway itself answers: errors in OpenAI's shape."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from aiohttp import web

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    502: "upstream_error",
    503: "unavailable_error",
    504: "timeout_error",
}


class AnswerError(Exception):
    """A request gets an error, in the shape that OpenAI's clients understand.

    Args:
        status: HTTP status.
        message: what is wrong and what to do, for people.
        code: for programs.
        param: field of the body or header that it is about.
        retry_after_s: when to come back (429, 503); sent in whole seconds, rounded up.
        headers: further headers.

    Attributes:
        counted: whether it is in the metrics already.
    """

    counted = False

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.headers = dict(headers or {})
        if retry_after_s is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))

    def body(self) -> bytes:
        """The JSON of the answer, or of a stream's last event."""
        error = {
            "message": self.message,
            "type": _TYPES.get(self.status, "server_error"),
            "param": self.param,
            "code": self.code,
        }
        return json.dumps({"error": error}).encode()

    def response(self) -> web.Response:
        """The whole answer."""
        headers = {"Server": "headway", **self.headers}
        return web.Response(status=self.status, body=self.body(), content_type="application/json", headers=headers)

    def event(self) -> bytes:
        """The error as the last event of a stream that has begun."""
        return b"data: " + self.body() + b"\n\n"
