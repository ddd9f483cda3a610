"""The gateway: an OpenAI-compatible proxy in front of a fleet of engines."""
