"""Writes Chakra execution traces: for tests, and for small workloads of one's own. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from headway.sim.formats.chakra import SCHEMA, NodeKind, TraceNode
from headway.sim.formats.wire import encoded, encoded_varint


def encode_trace(nodes: Sequence[TraceNode], *, version: str = SCHEMA) -> bytes:
    """A file's bytes: what `parse_trace` reads back, and ASTRA-sim reads. Process groups are not written."""
    metadata = encoded(1, version)
    out = [encoded_varint(len(metadata)) + metadata]
    for node in nodes:
        message = _encoded_node(node)
        out.append(encoded_varint(len(message)) + message)
    return b"".join(out)


def _encoded_node(node: TraceNode) -> bytes:
    parts = [encoded(1, node.id), encoded(2, node.name), encoded(3, node.kind.value)]
    parts += [encoded(5, before) for before in node.after]
    if node.duration_s:
        parts.append(encoded(7, round(node.duration_s * 1e6)))
    attributes = [_encoded_attribute("is_cpu_op", 27, int(node.cpu))]
    if node.kind is NodeKind.COMP:
        attributes += [
            _encoded_attribute("num_ops", 9, round(node.ops)),
            _encoded_attribute("tensor_size", 13, round(node.tensor_bytes)),
        ]
    if node.comm is not None:
        attributes.append(_encoded_attribute("comm_type", 9, node.comm.value))
    if node.size_bytes:
        attributes.append(_encoded_attribute("comm_size", 9, node.size_bytes))
    for name, npu in (("comm_src", node.src), ("comm_dst", node.dst)):
        if npu >= 0:
            attributes.append(_encoded_attribute(name, 7, npu))
    if node.kind in (NodeKind.COMM_SEND, NodeKind.COMM_RECV):
        attributes.append(_encoded_attribute("comm_tag", 7, node.tag))
    if node.priority:
        attributes.append(_encoded_attribute("comm_priority", 7, node.priority))
    if node.group:
        attributes.append(_encoded_attribute("pg_name", 29, node.group))
    if node.dimensions:
        bits = encoded(1, bytes(node.dimensions))
        attributes.append(_encoded_attribute("involved_dim", 28, bits))
    return b"".join(parts + [encoded(10, attribute) for attribute in attributes])


def _encoded_attribute(name: str, number: int, value: int | str | bytes) -> bytes:
    return encoded(1, name) + encoded(number, value)
