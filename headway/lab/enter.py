"""Runs a command as a host of a lab. A script of its own: it needs nothing but Python, and starts in 20 ms.

    enter.py --netns FILE [--hostname NAME] [--hosts FILE] [--parent PID] -- COMMAND...

The command gets the namespace's network, its host's name, a /sys that shows its interfaces, and an /etc/hosts with
the lab's names. With --parent it is killed when that process ends, however it ends.
"""

import ctypes
import os
import signal
import sys

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWNET = 0x00020000, 0x04000000, 0x40000000
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 1 << 19
PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Enter and become the command; returns only when that failed."""
    split = arguments.index("--")
    options = dict(zip(arguments[0:split:2], arguments[1:split:2], strict=True))
    command = arguments[split + 1 :]
    libc = ctypes.CDLL(None, use_errno=True)
    if "--parent" in options:
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != int(options["--parent"]):
            return 1  # it ended before we could ask to be told
    try:
        fd = os.open(options["--netns"], os.O_RDONLY)
    except OSError as error:
        sys.stderr.write(f"headway lab: {options['--netns']}: {error.strerror}; has the lab ended?\n")
        return 127
    if libc.setns(fd, CLONE_NEWNET) != 0:
        sys.stderr.write(f"headway lab: cannot enter {options['--netns']}: {os.strerror(ctypes.get_errno())}\n")
        return 127
    os.close(fd)
    if "--hostname" in options and libc.unshare(CLONE_NEWUTS) == 0:
        name = options["--hostname"].encode()
        libc.sethostname(name, len(name))
    if libc.unshare(CLONE_NEWNS) == 0 and libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None) == 0:
        libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None)
        if "--hosts" in options:
            libc.mount(options["--hosts"].encode(), b"/etc/hosts", b"none", MS_BIND, None)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"headway lab: cannot run {command[0]}: {error.strerror}\n")
    return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
