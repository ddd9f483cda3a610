"""Open-loop load on any server that speaks the OpenAI API, and what came of it."""
