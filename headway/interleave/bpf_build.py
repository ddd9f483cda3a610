"""Compiles the BPF programs on this machine, and keeps the result in the user's cache folder.

Nothing of the kernel's sources is needed: the programs name the kernel's fields, and the loader puts in where the
running kernel has them (CO-RE). They are compiled once per source, compiler and kernel.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from headway.interleave.actuator import ActuatorError

SOURCES = Path(__file__).with_name("bpf")
COMPILERS = ("clang", *(f"clang-{version}" for version in range(22, 13, -1)))
"""Looked for in this order. 14 and later know all that the programs use."""
FLAGS = ("-g", "-O2", "-target", "bpf", "-mcpu=v3", "-nostdinc", "-Wall", "-Wextra", "-Werror")
_LIMIT_S = 60.0


def compiler() -> str | None:
    """The compiler's path; None if there is none."""
    return next((path for name in COMPILERS if (path := shutil.which(name))), None)


def compiled(source: Path, *, environment: Mapping[str, str] = os.environ) -> bytes:
    """The object compiled from a .bpf.c file, from the cache if it is there.

    Raises:
        ActuatorError: if there is no compiler, or it fails; with its own words.
    """
    clang = compiler()
    if clang is None:
        raise ActuatorError("clang is missing")
    folder = cache_folder(environment)
    cached = folder / f"{_key(clang, source)}.o" if folder is not None else None
    if cached is not None and _ours(cached):
        return cached.read_bytes()
    with tempfile.TemporaryDirectory(prefix="headway-bpf-") as work:
        made = Path(work) / "made.o"
        command = [clang, *FLAGS, "-I", str(SOURCES), "-c", str(source), "-o", str(made)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            raise ActuatorError(f"{clang} did not end within {_LIMIT_S:g} s") from None
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            first = next((line for line in lines if "error:" in line), lines[0] if lines else "without a word")
            raise ActuatorError(f"{clang} failed: {first}")
        code = made.read_bytes()
    if cached is not None:
        _keep(cached, code)
    return code


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Where compiled programs are kept; None where that folder is not ours alone, since root loads what lies there."""
    home = environment.get("XDG_CACHE_HOME") or (f"{environment['HOME']}/.cache" if environment.get("HOME") else "")
    if not home:
        return None
    folder = Path(home) / "headway" / "bpf"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return None  # read-only, or no folder: compiled anew each time
    return folder if _ours(folder) else None


def _ours(path: Path) -> bool:
    try:
        about = path.stat()
    except FileNotFoundError:
        return False
    return about.st_uid == os.geteuid() and not about.st_mode & 0o022


def _keep(path: Path, code: bytes) -> None:
    """Others may be doing the same: whoever is last replaces the same bytes."""
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(code)
        Path(name).replace(path)
    except OSError:
        return  # a full disk costs the next process a second


def _key(clang: str, source: Path) -> str:
    parts = [source.read_bytes(), *(path.read_bytes() for path in sorted(SOURCES.glob("*.h")))]
    parts += [" ".join(FLAGS).encode(), platform.release().encode()]
    about = Path(clang).resolve().stat()
    # Asking the compiler for its version takes as long as compiling: its file says as well which one it is.
    parts.append(f"{Path(clang).resolve()} {about.st_size} {about.st_mtime_ns}".encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]
