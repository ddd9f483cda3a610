"""A fleet of model engines behind the real router, on a simulated clock. Pure."""
