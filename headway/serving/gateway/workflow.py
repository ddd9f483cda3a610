"""Which workflow a call is a step of: named by header, path, key or baggage, so that no agent framework's code changes.

A workflow's name is `kind/run`: what kind it is, and which one request to it. In order of precedence:

- the header `x-headway-workflow: kind/run`;
- the base URL: `/workflow/kind/run/v1/chat/completions`, of `OPENAI_BASE_URL=http://gateway/workflow/kind/run/v1`;
- the key: `Authorization: Bearer KEY/workflow/kind/run`, as `OPENAI_API_KEY` makes it;
- W3C baggage: `baggage: headway.workflow=kind/run`, which instrumented frameworks pass on by themselves;
- the configured key's own `workflow`.

Where a call names the kind alone, the trace id of its `traceparent` is the run. Path, key and baggage are in percent
escapes, each half by itself; an escaped `/` in a kind stays an escape, since the first `/` of a name ends its kind.
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
NAME_LIMIT = 200
"""Of kind and run together (characters)."""
_CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029]")
_MARK = "/workflow/"
_OF_API = re.compile(r"/workflow/([^/]+(?:/[^/]+)?)(/v1/.+)")
"""The run may be left out here: what follows is known."""
_OF_ENGINE = re.compile(r"/workflow/([^/]+/[^/]+)(/.+)")


def named_by_header(http: web.BaseRequest) -> web.BaseRequest:
    """The same request without the workflow in its path or its key; whatever named it, the header does now.

    Raises:
        AnswerError: 400, its headers can't be passed on, or the name is too long or has control characters.
    """
    named = http.headers.get(HEADER, "")
    url, authorization = http.rel_url, http.headers.get("Authorization", "")
    found = _split(url.raw_path) if url.raw_path.startswith(_MARK) else None
    key, marked, of_key = authorization.partition(_MARK)
    of_baggage = _in_baggage(http.headers.getall("baggage", ()))
    name = named or (found[0] if found else "") or _decoded(of_key.strip()) or of_baggage
    _check(name)
    if found is None and not marked and (named or not of_baggage):
        return http
    headers = CIMultiDict(http.headers)
    headers[HEADER] = name
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
    if found is None:
        return None
    kind, slash, run = found[1].partition("/")
    return _kind(kind) + slash + unquote(run), found[2]


def _decoded(name: str) -> str:
    """Of a key or of baggage, where the `/` between kind and run may be an escape, too."""
    kind, slash, run = name.partition("/")
    return _kind(kind) + slash + unquote(run) if slash else unquote(name)


def _kind(text: str) -> str:
    return unquote(text).replace("/", "%2F")


def _check(name: str) -> None:
    if len(name) > NAME_LIMIT:
        raise AnswerError(
            400, f"a workflow's name has {NAME_LIMIT} characters at most, not {len(name)}", code="invalid_value"
        )
    if _CONTROL.search(name) is not None:
        raise AnswerError(400, "a workflow's name has a control character", code="invalid_value")


def _in_baggage(headers: Iterable[str]) -> str:
    """The value in the headers' lists of `key=value;properties`; empty where it isn't there."""
    for header in headers:
        for member in header.split(","):
            name, _, value = member.partition(";")[0].partition("=")
            if name.strip() == BAGGAGE_KEY:
                return _decoded(value.strip())
    return ""
