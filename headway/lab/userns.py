"""Becomes root of a new user, network and mount namespace, then runs a command. A script of its own.

    userns.py -- COMMAND...

It must run before any thread is started: the kernel lets only a single-threaded process change its user namespace.
"""

import ctypes
import os
import sys
from typing import NoReturn

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000


def write(path: str, text: str) -> None:
    """Write a small file of /proc."""
    with open(path, "w") as file:
        file.write(text)


def main(command: list[str]) -> NoReturn:
    """Become root and become the command; exits with 1 when that failed."""
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS) != 0:
        reason = os.strerror(ctypes.get_errno())
        sys.stderr.write(
            f"[lab] error: a lab needs root, or user namespaces, and the kernel refuses those: {reason}"
            " (look at sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces,"
            " kernel.apparmor_restrict_unprivileged_userns)\n"
        )
        sys.exit(1)
    write("/proc/self/setgroups", "deny")
    write("/proc/self/uid_map", f"0 {user} 1")
    write("/proc/self/gid_map", f"0 {group} 1")
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[2:])
