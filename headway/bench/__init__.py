"""Measuring collectives and their peers side by side."""
