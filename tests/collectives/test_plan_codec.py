from __future__ import annotations

import base64
import json
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.collectives import families
from headway.collectives.plan import Plan, PlanError, Tree
from headway.collectives.plan_codec import MAX_BYTES, PREFIX, decode, encode


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    n = draw(st.integers(1, 30))
    weights = draw(st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=6))
    trees = []
    for weight in weights:
        order = draw(st.permutations(range(n)))
        parents = [-1] * n
        for place in range(1, n):
            parents[order[place]] = order[draw(st.integers(0, place - 1))]
        trees.append(Tree(tuple(parents), weight / sum(weights)))
    return Plan(draw(st.text(max_size=40)), n, tuple(trees), tuple(draw(st.permutations(range(n)))))


@settings(max_examples=60, deadline=None)
@given(plans())
def test_round_trip_is_exact(plan: Plan) -> None:
    text = encode(plan)
    again = decode(text)
    assert again == plan
    assert again.order == plan.order
    assert text.isascii()
    assert text.isprintable()


@pytest.mark.parametrize(
    "plan",
    [families.ring(range(1024)), families.chains(range(1000), last=range(1000, 1024))],
    ids=lambda plan: str(plan.name),
)
def test_a_thousand_ranks_fit_in_a_control_message(plan: Plan) -> None:
    text = encode(plan)
    assert len(text) < 64 * 1024
    assert decode(text) == plan


def packed(raw: bytes) -> str:
    return PREFIX + base64.b64encode(zlib.compress(raw)).decode()


def header(**changes: object) -> bytes:
    return json.dumps({"name": "x", "size": 2, "trees": 1, "order": [], **changes}).encode() + b"\n"


BODY = b"\0\0\0\0\0\0\xf0\x3f" + b"\xff\xff\0\0"


def test_the_format_is_what_the_module_says() -> None:
    assert decode(packed(header() + BODY)) == Plan("x", 2, (Tree((-1, 0), 1.0),))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "begins with"),
        ("hwplan2:xxxx", "begins with"),
        (PREFIX + "!!!", "damaged"),
        (PREFIX + "é", "damaged"),
        (PREFIX + base64.b64encode(b"no zlib").decode(), "damaged"),
        (encode(families.ring(range(3)))[:-8], "cut short|damaged"),
        (packed(b"no json\n"), "bad header"),
        (packed(b"[]\n"), "no object"),
        (packed(header(size="2") + BODY), "without a proper"),
        (packed(header(size=True) + BODY), "without a proper"),
        (packed(header(name=3) + BODY), "without a proper"),
        (packed(header(trees=0) + BODY), "without a proper"),
        (packed(header(order=[7]) + BODY), "no rank"),
        (packed(header(size=3) + BODY), "bytes of trees"),
        (packed(header() + BODY + b"x"), "bytes of trees"),
        (packed(header() + BODY[:-2] + b"\x01\x00"), "rank 1 has parent 1"),
        (packed(header() + b"\0" * 8 + BODY[8:]), "share"),
        (packed(b"\0" * (MAX_BYTES + 1)), "unpacks to more"),
    ],
)
def test_other_texts_are_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        decode(text)
