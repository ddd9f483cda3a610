"""The simulated clock, and flows on links at their max-min fair rates."""
