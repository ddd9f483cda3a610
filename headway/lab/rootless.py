"""Labs without root: a user namespace in which this user is root."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from headway.lab.kernel import LabError

_MARK = "_HEADWAY_LAB_IN_USER_NAMESPACE"
_SCRIPT = Path(__file__).with_name("userns.py")


def become_root_in_user_namespace() -> NoReturn:
    """Run this same command again, as root of a new user namespace. LabError when that did not help before."""
    if _MARK in os.environ:
        raise LabError("this process has no right to make network namespaces, not even in a user namespace of its own")
    arguments = [sys.executable, "-I", "-S", str(_SCRIPT), "--", sys.executable, *sys.orig_argv[1:]]
    os.environ[_MARK] = "1"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, arguments)
