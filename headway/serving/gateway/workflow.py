"""Which workflow a call is a step of: named by header, path, key or baggage, so that no agent framework's code changes.

A workflow's name is `kind/run`: what kind it is, and which one request to it. In order of precedence:

- the header `x-headway-workflow: kind/run`;
- the base URL: `/workflow/kind/run/v1/chat/completions`, of `OPENAI_BASE_URL=http://gateway/workflow/kind/run/v1`;
- the key: `Authorization: Bearer KEY/workflow/kind/run`, as `OPENAI_API_KEY` makes it;
- W3C baggage: `baggage: headway.workflow=kind/run`, which instrumented frameworks pass on by themselves;
- the configured key's own `workflow`.

Where a call names the kind alone, the trace id of its `traceparent` is the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from headway.serving.gateway.answers import AnswerError
from headway.serving.gateway.traceparent import parse

HEADER = "x-headway-workflow"
BAGGAGE_KEY = "headway.workflow"
_MARK = "/workflow/"
_OF_API = re.compile(r"/workflow/([^/]+(?:/[^/]+)?)(/v1/.+)")
"""The run may be left out here: what follows is known."""
_OF_ENGINE = re.compile(r"/workflow/([^/]+/[^/]+)(/.+)")


def named_by_header(http: web.BaseRequest) -> web.BaseRequest:
    """The same request without the workflow in its path or its key; whatever named it, the header does now.

    Raises:
        AnswerError: 400, its headers can't be passed on.
    """
    named = http.headers.get(HEADER, "")
    url, authorization = http.rel_url, http.headers.get("Authorization", "")
    found = _split(url.raw_path) if url.raw_path.startswith(_MARK) else None
    key, marked, of_key = authorization.partition(_MARK)
    of_baggage = _in_baggage(http.headers.getall("baggage", ()))
    if found is None and not marked and (named or not of_baggage):
        return http
    headers = CIMultiDict(http.headers)
    headers[HEADER] = named or (found[0] if found else "") or unquote(of_key.strip()) or of_baggage
    if marked:
        headers["Authorization"] = key
    if found is not None:
        url = URL(found[1] + (f"?{url.raw_query_string}" if url.raw_query_string else ""), encoded=True)
    try:
        return http.clone(rel_url=url, headers=headers)
    except UnicodeEncodeError:
        raise AnswerError(400, "a header is not UTF-8", code="invalid_value") from None


def with_run(workflow: str, traceparent: str | None) -> str:
    """A workflow's name as `kind/run`, where the run is named or there is a trace; else as it is."""
    if not workflow or "/" in workflow or not traceparent:
        return workflow
    context = parse(traceparent)
    return f"{workflow}/{context.trace_id:032x}" if context is not None else workflow


def _split(raw_path: str) -> tuple[str, str] | None:
    """(the workflow's name, the path without it)."""
    found = _OF_API.fullmatch(raw_path) or _OF_ENGINE.fullmatch(raw_path)
    return (unquote(found[1]), found[2]) if found is not None else None


def _in_baggage(headers: Iterable[str]) -> str:
    """The value in the headers' lists of `key=value;properties`; empty where it isn't there."""
    for header in headers:
        for member in header.split(","):
            name, _, value = member.partition(";")[0].partition("=")
            if name.strip() == BAGGAGE_KEY:
                return unquote(value.strip())
    return ""
