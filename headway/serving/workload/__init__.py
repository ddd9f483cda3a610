"""Loads for LLM servers: read from traces, or generated with known prefix sharing. Pure."""
