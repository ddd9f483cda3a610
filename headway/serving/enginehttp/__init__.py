"""The engine model as an HTTP server: the OpenAI API in front of `headway.serving.engine`, paced by the real clock."""
