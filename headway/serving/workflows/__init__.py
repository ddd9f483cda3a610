"""Workflows in which models call each other: what was recorded of them, and what they are on average. Pure."""
