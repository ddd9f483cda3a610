"""Chakra execution traces: what is written is read back, and broken files are one line with file, byte and field."""

from __future__ import annotations

import gzip
import json
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import UsageError
from headway.sim.formats.chakra import CommKind, NodeKind, TraceNode, parse_trace, read_groups, read_trace, read_traces
from headway.sim.formats.chakra_write import encode_trace
from headway.sim.formats.wire import encoded, encoded_varint

NODES = (
    TraceNode(0, "forward", NodeKind.COMP, duration_s=5e-6, ops=1e12, tensor_bytes=4096),
    TraceNode(1, "load", NodeKind.COMP, cpu=True, duration_s=2e-6),
    TraceNode(2, "sum", NodeKind.COMM_COLL, (0, 1), comm=CommKind.ALL_REDUCE, size_bytes=2**33, group="7", priority=3),
    TraceNode(3, "out", NodeKind.COMM_SEND, (2,), size_bytes=300, src=0, dst=1, tag=9),
    TraceNode(4, "in", NodeKind.COMM_RECV, size_bytes=300, src=1, tag=1),
    TraceNode(5, "gather", NodeKind.COMM_COLL, comm=CommKind.ALL_GATHER, size_bytes=8, dimensions=(True, False)),
    TraceNode(6, "groups", NodeKind.METADATA),
)


def message(*parts: bytes) -> bytes:
    content = b"".join(parts)
    return encoded_varint(len(content)) + content


def attribute(name: str, number: int, value: int | str | bytes) -> bytes:
    return encoded(10, encoded(1, name) + encoded(number, value))


def trace(*nodes: bytes, version: str = "0.0.4") -> bytes:
    return message(encoded(1, version)) + b"".join(nodes)


def test_a_trace_is_read_as_it_was_written() -> None:
    assert parse_trace(encode_trace(NODES), where="x.et").nodes == NODES


def test_bytes_of_a_file_as_the_schema_says() -> None:
    """Length, GlobalMetadata{version}, length, Node{id, name, type, is_cpu_op, comm_type, comm_size}, by hand."""
    data = (
        b"\x07\x0a\x050.0.4"
        b"\x37\x08\x02\x12\x01a\x18\x07"
        b"\x52\x0e\x0a\x09is_cpu_op\xd8\x01\x00"
        b"\x52\x0d\x0a\x09comm_type\x48\x07"
        b"\x52\x0f\x0a\x09comm_size\x48\x80\x80\x40"
    )
    node = parse_trace(data, where="x.et").nodes[0]
    assert (node.id, node.name, node.comm, node.size_bytes) == (2, "a", CommKind.REDUCE_SCATTER, 2**20)


KINDS = st.one_of(
    st.builds(
        TraceNode,
        st.just(0),
        st.text(max_size=5),
        st.just(NodeKind.COMP),
        st.just(()),
        st.integers(0, 10**9).map(lambda us: us / 1e6),
        st.booleans(),
        st.integers(0, 2**50).map(float),
        st.integers(0, 2**50).map(float),
    ),
    st.builds(
        lambda comm, size, group: TraceNode(0, "c", NodeKind.COMM_COLL, comm=comm, size_bytes=size, group=group),
        st.sampled_from(list(CommKind)),
        st.integers(1, 2**50),
        st.text(max_size=4),
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(KINDS, max_size=6), st.data())
def test_any_trace_is_read_as_it_was_written(nodes: list[TraceNode], data: st.DataObject) -> None:
    numbered = []
    for number, node in enumerate(nodes):
        after = data.draw(st.sets(st.integers(0, number - 1))) if number else set()
        fields = {name: getattr(node, name) for name in TraceNode.__slots__}
        numbered.append(TraceNode(**fields | {"id": number, "after": tuple(sorted(after))}))
    assert parse_trace(encode_trace(numbered), where="x.et").nodes == tuple(numbered)


def test_a_packed_file_and_packed_dependencies() -> None:
    assert parse_trace(gzip.compress(encode_trace(NODES)), where="x.et").nodes == NODES
    node = message(encoded(1, 2), encoded(3, 4), encoded(4, b"\x00"), encoded(5, b"\x00\x01"))
    two = message(encoded(1, 0), encoded(3, 4)) + message(encoded(1, 1), encoded(3, 4))
    assert parse_trace(trace(two, node), where="x.et").nodes[2].after == (0, 1)


@pytest.mark.parametrize(
    "value",
    [
        encoded(7, 70),
        encoded(11, 70),
        encoded(13, 70),
        encoded(15, 140),
        encoded(17, 140),
        encoded_varint(19 << 3 | 5) + struct.pack("<I", 70),
        encoded_varint(21 << 3 | 1) + struct.pack("<Q", 70),
        encoded_varint(3 << 3 | 1) + struct.pack("<d", 70.0),
        encoded_varint(5 << 3 | 5) + struct.pack("<f", 70.0),
    ],
)
def test_an_attribute_may_have_any_type_of_number(value: bytes) -> None:
    node = message(
        encoded(1, 1),
        encoded(3, 7),
        attribute("comm_type", 9, 0),
        encoded(10, encoded(1, "comm_size") + value),
    )
    assert parse_trace(trace(node), where="x.et").nodes[0].size_bytes == 70


def test_process_groups_of_pytorch() -> None:
    rows = [{"pg_name": "0", "ranks": []}, {"pg_name": "1", "ranks": [0, 2]}]
    inputs = encoded(8, encoded(1, "['" + json.dumps(rows) + "']"))
    read = parse_trace(trace(message(encoded(1, 1), encoded(3, 1), inputs)), where="x.et")
    assert read.groups == {"0": (), "1": (0, 2)}
    broken = encoded(8, encoded(1, "['[{\"pg_name\": 1}]']"))
    with pytest.raises(UsageError, match="node 1: inputs: process groups are not readable"):
        parse_trace(trace(message(encoded(1, 1), encoded(3, 1), broken)), where="x.et")


COLLECTIVE = (encoded(1, 5), encoded(3, 7))


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", "x.et: byte 0: is empty"),
        (b"\xff" * 11, "x.et: byte 0: a number has more than ten bytes"),
        (b"\x80", "x.et: byte 0: the data ends within a number"),
        (b"\x30\x0a", "x.et: byte 0: a message of 48 bytes begins, and 1 are left"),
        (trace(version="0.0.3"), "x.et: byte 3: has schema '0.0.3'; 0.0.4 is read"),
        (message(encoded(1, 7)), "x.et: byte 2: begins with no GlobalMetadata of schema 0.0.4"),
        (trace(message(encoded(1, 5))), "x.et: byte 9: node 5: type: is missing"),
        (trace(message(encoded(3, 4), encoded(11, "x"))), "x.et: byte 13: a node of schema 0.0.4 has no field 11"),
        (trace(message(encoded(3, 9))), "x.et: byte 9: node 0: type: has no value 9 in schema 0.0.4"),
        (trace(message(*COLLECTIVE)), "x.et: byte 9: node 5: comm_type: is missing"),
        (trace(message(*COLLECTIVE, attribute("comm_type", 9, 0))), "x.et: byte 9: node 5: comm_size: is missing"),
        (
            trace(message(*COLLECTIVE, attribute("comm_type", 9, 12))),
            "x.et: byte 9: node 5: comm_type: has no value 12",
        ),
        (
            trace(message(*COLLECTIVE, attribute("comm_type", 9, 0), attribute("comm_size", 9, -1))),
            "x.et: byte 9: node 5: comm_size: cannot be -1",
        ),
        (trace(message(*COLLECTIVE, attribute("comm_type", 29, "sum"))), "x.et: byte 29: comm_type is no number"),
        (trace(message(encoded(1, 5), encoded(3, 5))), "x.et: byte 9: node 5: comm_size: is missing"),
        (trace(message(encoded(1, b"\xff"))), "x.et: byte 11: a node's field 1 is no number"),
        (trace(message(encoded(2, b"\xff"))), "x.et: byte 11: field 2 is no text"),
        (trace(message(b"\x03")), "x.et: byte 9: 0 is no field's number"),
        (trace(message(b"\x0b")), "x.et: byte 9: field 1 has wire type 3"),
        (trace(message(b"\x12\x05")), "x.et: byte 9: field 2 has 5 bytes, and 0 are left"),
        (b"\x1f\x8b\x00", "x.et: is packed by gzip, and broken: "),
        (encode_trace([NODES[0], NODES[0]]), "x.et: node 0: is there twice"),
        (encode_trace([NODES[3]]), "x.et: node 3: waits for node 2, which is not there"),
        (
            encode_trace([TraceNode(1, "", NodeKind.COMP, (2,)), TraceNode(2, "", NodeKind.COMP, (1,))]),
            "x.et: node 1: waits for itself, by way of others",
        ),
    ],
)
def test_a_broken_file_is_one_line(data: bytes, line: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_trace(data, where="x.et")
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


GOOD = encode_trace(NODES)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=80),
        st.integers(0, len(GOOD)).map(lambda end: GOOD[:end]),
        st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 4), st.binary(max_size=4)).map(
            lambda cut: GOOD[: cut[0]] + cut[2] + GOOD[cut[0] + cut[1] :]
        ),
        st.binary(max_size=40).map(lambda junk: b"\x1f\x8b" + junk),
        st.binary(max_size=60).map(lambda junk: trace() + junk),
    )
)
def test_no_bytes_get_anything_else_out_of_the_reader(data: bytes) -> None:
    try:
        read = parse_trace(data, where="x.et")
    except UsageError as error:
        assert str(error).startswith("x.et")  # noqa: PT017 - a file that is right is no failure
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert len({node.id for node in read.nodes}) == len(read.nodes)


def test_one_file_per_npu(tmp_path: Path) -> None:
    for npu in range(3):
        (tmp_path / f"work.load.{npu}.et").write_bytes(GOOD)
    assert len(read_traces(tmp_path / "work.load", 3)) == 3
    with pytest.raises(UsageError, match=r"work\.load\.2\.et: is there, and the network has 2 NPUs"):
        read_traces(tmp_path / "work.load", 2)
    with pytest.raises(UsageError, match=r"work\.load\.3\.et: no such file"):
        read_traces(tmp_path / "work.load", 4)
    with pytest.raises(UsageError, match=re.escape(str(tmp_path))):
        read_trace(tmp_path)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"1": [0, 1],\n}', "groups.json:2: "),
        ("[]", "groups.json: is no object"),
        ('{"1": [0, "x"]}', "groups.json: 1: must be a list of NPUs"),
        ('{"1": [true]}', "groups.json: 1: must be a list of NPUs"),
    ],
)
def test_a_wrong_file_of_groups_is_one_line(text: str, line: str, tmp_path: Path) -> None:
    path = tmp_path / "groups.json"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        read_groups(path)
    assert str(error.value).startswith(f"{tmp_path}/{line}")


def test_groups_by_name(tmp_path: Path) -> None:
    path = tmp_path / "groups.json"
    path.write_text('{"1": [0, 1], "2": []}')
    assert read_groups(path) == {"1": (0, 1), "2": ()}
