"""Latency curves of models: measured on live engines, made from the engine model, or read from a table."""
