"""The servers whose habits are known."""

from clairvoyant_cli.backends.adapter import Adapter
from clairvoyant_cli.backends.jan import Jan
from clairvoyant_cli.backends.llamacpp import LlamaCpp
from clairvoyant_cli.backends.lmstudio import LmStudio
from clairvoyant_cli.backends.ollama import Ollama
from clairvoyant_cli.backends.sglang import SgLang
from clairvoyant_cli.backends.vllm import Vllm

ADAPTERS: tuple[Adapter, ...] = (Ollama(), LlamaCpp(), LmStudio(), Jan(), Vllm(), SgLang())
"""In the order in which a server is asked whether it is one, and in which one is chosen if several run."""

OTHER = Adapter()
"""Any other OpenAI-compatible server."""


def adapter_of(name: str) -> Adapter:
    """Return the adapter of that name, as snapshots, profiles and the history have it."""
    return next((adapter for adapter in ADAPTERS if adapter.name == name), OTHER)
