"""The learned policy: predicts each replica's time to first token, and learns while it routes. Pure."""
