"""The replay backend: answers of a chosen length at a chosen speed, one at a time, like Ollama."""

from clairvoyant_cli.research.replay.app import Replay
from clairvoyant_cli.research.replay.engine import Engine, Speed
from clairvoyant_cli.research.replay.journal import Outcome, Service
from clairvoyant_cli.research.replay.lengths import digest, heavy_tailed, tabled
from clairvoyant_cli.research.replay.models import DEFAULT_MODEL

__all__ = [
    "DEFAULT_MODEL",
    "Engine",
    "Outcome",
    "Replay",
    "Service",
    "Speed",
    "digest",
    "heavy_tailed",
    "tabled",
]
