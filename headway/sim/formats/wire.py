"""Protocol buffers' wire format, as much as execution traces use of it. Pure.

Why not the protobuf package: four wire types are all there is to read, an error must say at which byte of the file it
is, which that package does not, and it takes unknown fields (so nearly any bytes) for a message without a word.
Format: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


class WireError(Exception):
    """Bytes that are no message. `position` counts from the begin of the data."""

    def __init__(self, what: str, position: int) -> None:
        self.what, self.position = what, position
        super().__init__(f"{what} at byte {position}")


class Field(NamedTuple):
    """One field of a message.

    Attributes:
        number: of the field.
        kind: its wire type.
        value: an integer of 64 bits without a sign; 0 for BYTES.
        start, end: where a BYTES value lies in the data; `start` is the value's place for the others too.
    """

    number: int
    kind: int
    value: int
    start: int
    end: int


def varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """A variable-length integer, and the position after it."""
    result = 0
    if position < end and data[position] < 0x80:
        return data[position], position + 1
    for count in range(_LONGEST_VARINT):
        if position + count >= end:
            raise WireError("the data ends within a number", position)
        byte = data[position + count]
        result |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return result & 0xFFFFFFFFFFFFFFFF, position + count + 1
    raise WireError("a number has more than ten bytes", position)


def fields(data: bytes, start: int, end: int) -> Iterator[Field]:
    """The fields of the message in data[start:end], in order."""
    position = start
    while position < end:
        at = position
        tag = data[position]
        if tag < 0x80:  # nearly all are of one byte
            position += 1
        else:
            tag, position = varint(data, position, end)
        number, kind = tag >> 3, tag & 7
        if not 1 <= number < 1 << 29:
            raise WireError(f"{number} is no field's number", at)
        if kind == VARINT:
            value, after = varint(data, position, end)
            yield Field(number, kind, value, position, after)
        elif kind == BYTES:
            size, position = varint(data, position, end)
            after = position + size
            if after > end:
                raise WireError(f"field {number} has {size} bytes, and {end - position} are left", at)
            yield Field(number, kind, 0, position, after)
        elif kind in (FIXED64, FIXED32):
            after = position + (8 if kind == FIXED64 else 4)
            if after > end:
                raise WireError(f"the data ends within field {number}", at)
            yield Field(number, kind, int.from_bytes(data[position:after], "little"), position, after)
        else:
            raise WireError(f"field {number} has wire type {kind}", at)
        position = after


def signed(value: int) -> int:
    """An int32 or int64 that was written as a varint."""
    return value - (1 << 64) if value >= 1 << 63 else value


def zigzag(value: int) -> int:
    """An sint32 or sint64."""
    return (value >> 1) ^ -(value & 1)


def double(value: int, kind: int) -> float:
    """A double (FIXED64) or float (FIXED32) from its bits."""
    if kind == FIXED64:
        return float(struct.unpack("<d", value.to_bytes(8, "little"))[0])
    return float(struct.unpack("<f", value.to_bytes(4, "little"))[0])


def encoded_varint(value: int) -> bytes:
    """An integer from 0, or a negative one of 64 bits."""
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encoded(number: int, value: int | str | bytes) -> bytes:
    """A field: an integer as a varint, text and bytes with their length."""
    if isinstance(value, int):
        return encoded_varint(number << 3 | VARINT) + encoded_varint(value)
    payload = value.encode() if isinstance(value, str) else value
    return encoded_varint(number << 3 | BYTES) + encoded_varint(len(payload)) + payload
