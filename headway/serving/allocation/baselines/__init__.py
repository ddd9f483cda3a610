"""Who shares out GPUs, or the time on them, where nobody plans for the workflow as a whole. Pure.

Simple models of what others do, to compare plans with. Each says what it leaves out, and where it is kinder than its
original.
"""
