"""The servers whose habits are known: one module here for each name."""

from importlib import import_module
from typing import cast

from clairvoyant_cli.addresses import BACKEND_NAMES
from clairvoyant_cli.backends.adapter import Adapter

OTHER = Adapter()  # any other OpenAI-compatible server


def _load(name: str) -> Adapter:
    return cast(Adapter, import_module(f"clairvoyant_cli.backends.{name}").ADAPTER)


ADAPTERS = tuple(map(_load, BACKEND_NAMES))
"""In the order in which a server is asked whether it is one, and in which one is chosen if several run."""


def adapter_of(name: str) -> Adapter:
    """Return the adapter of that name, as snapshots, profiles and the history have it."""
    return next((adapter for adapter in ADAPTERS if adapter.name == name), OTHER)
