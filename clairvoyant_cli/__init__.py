"""Clairvoyant: a drop-in sidecar proxy that sends the shortest predicted LLM answer first."""

import sys

# httpx loads a command line of its own, and rich and pygments with it, wherever it can be found. Nobody here
# uses it, the daemon least of all; httpx does without where it cannot be found.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

__version__ = "0.1.0"
