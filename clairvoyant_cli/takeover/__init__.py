"""Moves an LLM server to another port, so that the proxy can listen where the server listened."""
