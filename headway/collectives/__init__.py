"""Plans for collectives, their limits, their tuner and their executor."""
