"""Keeps torch.compile out of our methods.

A compiled step calls the group from C++ (DDP does, between the parts of its graph), and dynamo would try to trace each
Python frame that it meets there. Nothing in a group can be traced. `torch.compiler.disable` would do, but imports all
of dynamo into programs that never compile; so the frames are marked through the part that is always loaded.
"""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

Class = TypeVar("Class", bound=type)


def never_compiled(cls: Class) -> Class:
    """Class decorator: dynamo runs the class's own methods, and all that they call, as they are."""
    skip = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    for member in vars(cls).values():
        function = member.fget if isinstance(member, property) else member
        if isinstance(function, FunctionType):
            set_code_exec_strategy(function.__code__, skip)
    return cls
