"""What goes over our connections, byte by byte. All numbers are little-endian.

A connection has one direction for messages, from the rank that opened it to the rank that listened:

    opener                                          listener
    HELLO      72 B: who, for whom, for what, nonce ->
                     <- CHALLENGE 48 B: nonce, proof that the listener knows the group's token
    PROOF      32 B: the same of the opener         ->
    frames: HEADER 24 B, payload                    ->
    GOODBYE (a header), then end of stream          <- or ->, by whoever closes in good order
    RETIRE (a header), then end of stream           ->  another connection takes this one's place

The token itself never travels: each side shows an HMAC over both nonces and the hello. The roles have labels of
their own, so that a proof cannot be reflected. Data is neither encrypted nor signed: the token keeps strangers and
confusion out, not somebody who can rewrite packets on the path.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass
from enum import IntEnum

VERSION = 1

HELLO = struct.Struct("<8sHHII16s32s4x")
CHALLENGE = struct.Struct("<16s32s")
PROOF_BYTES = 32
NONCE_BYTES = 32
CHALLENGE_NONCE_BYTES = 16
TOKEN_BYTES = 32
_HELLO_MAGIC = b"HEADWAY\n"

# kind, channel, tag, size of the payload in bytes
HEADER = struct.Struct("<IIQQ")
HEADER_BYTES = HEADER.size
# Kinds are odd numbers of 32 bits: a stream that lost its place, or a stranger's text, is noticed at once.
MESSAGE = 0x9D57_4801
GOODBYE = 0x9D57_4802
RETIRE = 0x9D57_4803
GOODBYE_FRAME = HEADER.pack(GOODBYE, 0, 0, 0)
RETIRE_FRAME = HEADER.pack(RETIRE, 0, 0, 0)


class Purpose(IntEnum):
    """What a connection carries. One connection per (opener, listener, purpose)."""

    STREAM = 1
    CONTROL = 2
    MATCHED = 3


@dataclass(frozen=True, slots=True)
class Hello:
    """The first bytes of a connection."""

    group: bytes
    src: int
    dst: int
    purpose: Purpose
    nonce: bytes


def group_id(group: str) -> bytes:
    """16 bytes that stand for a group's name."""
    return hashlib.sha256(group.encode()).digest()[:16]


def pack_hello(hello: Hello) -> bytes:
    """A hello as bytes."""
    return HELLO.pack(_HELLO_MAGIC, VERSION, hello.purpose, hello.src, hello.dst, hello.group, hello.nonce)


def parse_hello(data: bytes) -> Hello:
    """The hello in `data`. ValueError says what is wrong with it."""
    magic, version, purpose, src, dst, group, nonce = HELLO.unpack(data)
    if magic != _HELLO_MAGIC:
        raise ValueError("not a Headway hello")
    if version != VERSION:
        raise ValueError(f"protocol version {version}, ours is {VERSION}")
    if purpose not in Purpose.__members__.values():
        raise ValueError(f"unknown purpose {purpose}")
    return Hello(group=group, src=src, dst=dst, purpose=Purpose(purpose), nonce=nonce)


def listener_proof(token: bytes, hello: bytes, nonce: bytes) -> bytes:
    """What shows the opener of a connection that the listener knows the token."""
    return hmac.digest(token, b"headway listener" + nonce + hello, "sha256")


def opener_proof(token: bytes, hello: bytes, nonce: bytes) -> bytes:
    """What shows the listener that the opener knows the token."""
    return hmac.digest(token, b"headway opener" + nonce + hello, "sha256")
