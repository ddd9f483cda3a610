"""Headway keeps distributed AI moving on networks that are shared with others."""

__version__ = "0.1.0"
