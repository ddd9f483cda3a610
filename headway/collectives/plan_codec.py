"""A plan as one short line of text, for the control channel and the journal, and back.

`hwplan1:` and base64 of zlib of: a line of JSON (name, size, trees, order), then the shares as little-endian float64,
then the parents row by row as little-endian int16 (int32 from 32768 ranks up). Exact: decode(encode(plan)) == plan,
bit for bit in the shares. Families repeat themselves, so zlib shrinks them: a ring of 1024 ranks takes 27 KB for 1 M
parents.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib

import numpy as np

from headway.collectives.plan import Plan, PlanError, plan_of
from headway.collectives.verify import check_trees

PREFIX = "hwplan1:"
MAX_BYTES = 1 << 26
"""Largest unpacked plan that `decode` accepts: the text may come from another process."""
_INT16_RANKS = 1 << 15


def encode(plan: Plan) -> str:
    """One line of printable ASCII."""
    header = {"name": plan.name, "size": plan.size, "trees": len(plan.trees), "order": list(plan.order)}
    parts = (
        json.dumps(header, separators=(",", ":")).encode() + b"\n",
        plan.shares.astype("<f8").tobytes(),
        plan.parents.astype(_parents_type(plan.size)).tobytes(),
    )
    return PREFIX + base64.b64encode(zlib.compress(b"".join(parts), 6)).decode("ascii")


def decode(text: str) -> Plan:
    """The plan that `encode` wrote; PlanError says what is wrong with any other text, or with its trees."""
    if not text.startswith(PREFIX):
        raise PlanError(f"an encoded plan begins with {PREFIX!r}, this with {text[: len(PREFIX)]!r}")
    try:
        packed = base64.b64decode(text[len(PREFIX) :].encode("ascii"), validate=True)
        unpacker = zlib.decompressobj()
        raw = unpacker.decompress(packed, MAX_BYTES)
    except (binascii.Error, UnicodeEncodeError, zlib.error) as error:
        raise PlanError(f"an encoded plan is damaged: {error}") from None
    if not unpacker.eof:
        raise PlanError(f"an encoded plan is cut short, or unpacks to more than {MAX_BYTES} bytes")
    head, separator, body = raw.partition(b"\n")
    name, size, trees, order = _header(head)
    kind = _parents_type(size)
    if not separator or len(body) != trees * (8 + size * kind.itemsize):
        raise PlanError(f"an encoded plan has {len(body)} bytes of trees, which is wrong for {trees} trees of {size}")
    shares = np.frombuffer(body, dtype="<f8", count=trees).astype(np.float64)
    parents = np.frombuffer(body, dtype=kind, offset=8 * trees).reshape(trees, size)
    plan = plan_of(name, parents, shares, order=order)
    check_trees(plan)
    return plan


def _parents_type(size: int) -> np.dtype[np.signedinteger]:
    return np.dtype("<i2") if size < _INT16_RANKS else np.dtype("<i4")


def _header(head: bytes) -> tuple[str, int, int, list[int]]:
    try:
        fields: object = json.loads(head)
    except ValueError as error:
        raise PlanError(f"an encoded plan has a bad header: {error}") from None
    if not isinstance(fields, dict):
        raise PlanError("an encoded plan has a header that is no object")
    name, size, trees, order = (fields.get(key) for key in ("name", "size", "trees", "order"))
    counts_are_right = type(size) is int and type(trees) is int and size >= 1 and trees >= 1
    if not isinstance(name, str) or not counts_are_right or not isinstance(order, list):
        raise PlanError("an encoded plan has a header without a proper name, size, trees and order")
    assert isinstance(size, int)
    assert isinstance(trees, int)
    if not all(type(rank) is int and 0 <= rank < size for rank in order):
        raise PlanError("an encoded plan has an order with something that is no rank")
    return name, size, trees, order
