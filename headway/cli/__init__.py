"""The command line: one module per verb; parsing and printing, no logic."""
