"""Execution traces on simulated networks."""
