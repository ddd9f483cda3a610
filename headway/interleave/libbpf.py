"""The few calls of libbpf (1.0 or later) that loading a congestion control takes, through ctypes.

An algorithm stays registered for as long as a link is open, and the link is one descriptor of this process: when the
process ends, however it ends, the algorithm is gone from the list, and its code once the last socket has let go of it.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from types import TracebackType
from typing import Self

from headway.interleave.actuator import ActuatorError

LIBRARY = "libbpf.so.1"
_BPF_F_LINK = 1 << 13
_BPF_STRUCT_OPS = 44
_LINKS_ITSELF = (1, 2)
"""From this version on, attaching a map that has BPF_F_LINK makes the link; before, it only fills the map."""

_Pointer = ctypes.c_void_p
_Print = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, _Pointer)
_SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "libbpf_major_version": (ctypes.c_uint32, []),
    "libbpf_minor_version": (ctypes.c_uint32, []),
    "libbpf_set_print": (_Pointer, [_Print]),
    "bpf_object__open_mem": (_Pointer, [ctypes.c_char_p, ctypes.c_size_t, _Pointer]),
    "bpf_object__load": (ctypes.c_int, [_Pointer]),
    "bpf_object__close": (None, [_Pointer]),
    "bpf_object__find_map_by_name": (_Pointer, [_Pointer, ctypes.c_char_p]),
    "bpf_object__find_program_by_name": (_Pointer, [_Pointer, ctypes.c_char_p]),
    "bpf_program__fd": (ctypes.c_int, [_Pointer]),
    "bpf_map__fd": (ctypes.c_int, [_Pointer]),
    "bpf_map__set_map_flags": (ctypes.c_int, [_Pointer, ctypes.c_uint32]),
    "bpf_map__set_initial_value": (ctypes.c_int, [_Pointer, _Pointer, ctypes.c_size_t]),
    "bpf_map__attach_struct_ops": (_Pointer, [_Pointer]),
    "bpf_link__destroy": (ctypes.c_int, [_Pointer]),
    "bpf_link_create": (ctypes.c_int, [ctypes.c_int, ctypes.c_int, ctypes.c_int, _Pointer]),
    "bpf_map_update_elem": (ctypes.c_int, [ctypes.c_int, _Pointer, _Pointer, ctypes.c_uint64]),
    "bpf_map_lookup_elem": (ctypes.c_int, [ctypes.c_int, _Pointer, _Pointer]),
    "bpf_prog_test_run_opts": (ctypes.c_int, [ctypes.c_int, _Pointer]),
}


class _RunOptions(ctypes.Structure):
    """libbpf's struct bpf_test_run_opts."""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("data_in", _Pointer),
        ("data_out", _Pointer),
        ("data_size_in", ctypes.c_uint32),
        ("data_size_out", ctypes.c_uint32),
        ("ctx_in", _Pointer),
        ("ctx_out", _Pointer),
        ("ctx_size_in", ctypes.c_uint32),
        ("ctx_size_out", ctypes.c_uint32),
        ("retval", ctypes.c_uint32),
        ("repeat", ctypes.c_int),
        ("duration", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("cpu", ctypes.c_uint32),
        ("batch_size", ctypes.c_uint32),
    )


@functools.cache
def _library() -> ctypes.CDLL:
    """OSError if it is not installed."""
    library = ctypes.CDLL(LIBRARY, use_errno=True)
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


@functools.cache
def _silence() -> Callable[..., int]:
    """libbpf writes to stderr what it also returns as an error; the callback has to live as long as it does."""
    quiet: Callable[..., int] = _Print(lambda _level, _format, _arguments: 0)
    _library().libbpf_set_print(quiet)
    return quiet


def version() -> tuple[int, int] | None:
    """libbpf's version; None if it is not installed, or too old to say so."""
    try:
        return int(_library().libbpf_major_version()), int(_library().libbpf_minor_version())
    except (OSError, AttributeError):
        return None


class BpfObject:
    """Compiled programs and their maps in the kernel, until `close`.

    Args:
        code: the compiled object.
        initial: values of maps before they are loaded, by the map's name (".rodata").
        links: maps of struct_ops that will be registered.

    Raises:
        ActuatorError: if the kernel refused it; the first reason that the system gave.
    """

    def __init__(self, code: bytes, *, initial: dict[str, bytes] | None = None, links: tuple[str, ...] = ()) -> None:
        self._library = _library()
        _silence()
        self._link: int | None = None
        self._pretended: int | None = None
        self._object: int | None = self._library.bpf_object__open_mem(code, len(code), None)
        if not self._object:
            raise _error("the compiled program cannot be read")
        try:
            for name, value in (initial or {}).items():
                if self._library.bpf_map__set_initial_value(self._map(name), value, len(value)):
                    raise _error(f"the map {name} does not take its first value")
            for name in links:
                if self._library.bpf_map__set_map_flags(self._map(name), _BPF_F_LINK):
                    raise _error(f"the map {name} cannot become a link")
            if self._library.bpf_object__load(self._object):
                raise _error("the kernel did not load the program")
        except BaseException:
            self.close()
            raise

    def _map(self, name: str) -> int:
        found: int | None = self._library.bpf_object__find_map_by_name(self._object, name.encode())
        if not found:
            raise ActuatorError(f"the compiled program has no map {name}")
        return found

    def map_descriptor(self, name: str) -> int:
        """A map's descriptor, which belongs to this object."""
        return int(self._library.bpf_map__fd(self._map(name)))

    def register(self, name: str) -> None:
        """Register the struct_ops of this map with the kernel, until `close` or the process's end."""
        made: int | None = self._library.bpf_map__attach_struct_ops(self._map(name))
        if not made:
            raise _error("the kernel did not register the algorithm")
        self._pretended = made
        if (version() or (0, 0)) < _LINKS_ITSELF:
            link = self._library.bpf_link_create(self.map_descriptor(name), 0, _BPF_STRUCT_OPS, None)
            if link < 0:
                raise _error("the kernel did not register the algorithm")
            self._link = link

    def run(self, program: str, context: ctypes.Structure) -> None:
        """Run a program of type `syscall` once; it reads `context` and writes its answer there."""
        found = self._library.bpf_object__find_program_by_name(self._object, program.encode())
        if not found:
            raise ActuatorError(f"the compiled object has no program {program}")
        options = _RunOptions(sz=ctypes.sizeof(_RunOptions), ctx_in=ctypes.addressof(context))
        options.ctx_size_in = ctypes.sizeof(context)
        if self._library.bpf_prog_test_run_opts(self._library.bpf_program__fd(found), ctypes.byref(options)):
            raise _error(f"the kernel did not run {program}")

    def close(self) -> None:
        """Unregister and unload. Sockets that use the algorithm keep it until they are closed or choose another."""
        if self._link is not None:
            os.close(self._link)
        if self._pretended is not None:
            # For an old libbpf this is only its own memory: what it tries to undo in the kernel is undone already.
            self._library.bpf_link__destroy(self._pretended)
        if self._object:
            self._library.bpf_object__close(self._object)
        self._link = self._pretended = self._object = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def write_entry(map_descriptor: int, key: int, value: ctypes.Structure) -> None:
    """Write a map's entry whose key is one int (a socket's descriptor for socket storage)."""
    if _library().bpf_map_update_elem(map_descriptor, ctypes.byref(ctypes.c_int(key)), ctypes.byref(value), 0):
        raise _error("the kernel did not take a connection's settings")


def read_entry(map_descriptor: int, key: int, value: ctypes.Structure) -> bool:
    """Read a map's entry into `value`; False if there is none."""
    return not int(_library().bpf_map_lookup_elem(map_descriptor, ctypes.byref(ctypes.c_int(key)), ctypes.byref(value)))


def _error(what: str) -> ActuatorError:
    number = ctypes.get_errno()
    return ActuatorError(f"{what}: {os.strerror(number)}" if number else what)
