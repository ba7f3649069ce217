"""Clairvoyant: a drop-in sidecar proxy that sends the shortest predicted LLM answer first."""

__version__ = "0.1.0"
