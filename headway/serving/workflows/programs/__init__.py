"""Workflows as programs: who is called when, with what lengths, and what waits for what. Pure.

A program is a generator. It yields a step and gets the step's result when that has ended:

    def answer(context: Context) -> Program:
        found = yield All([search(context, part) for part in range(3)])     # a barrier: all three programs
        yield Sleep(0.2)                                                     # a tool
        yield CallModel("qwen2.5-7b", prompt, output_tokens=context.length(200, 0.5))

Branches and loops are Python's. Programs inside programs are `yield from`, or parts of an `All`.
"""
