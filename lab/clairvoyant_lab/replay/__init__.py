"""A simulated LLM server: answers of a chosen length at a chosen speed, like Ollama."""

from clairvoyant_lab.replay.app import DEFAULT_MODEL, Replay
from clairvoyant_lab.replay.engine import Engine, Service, Speed, digest, heavy_tailed, tabled

__all__ = [
    "DEFAULT_MODEL",
    "Engine",
    "Replay",
    "Service",
    "Speed",
    "digest",
    "heavy_tailed",
    "tabled",
]
