"""The kinds of servers that are known, each declared in its own module of `kinds`, in three orders."""

from importlib import import_module
from typing import cast

from clairvoyant_cli.addresses import BACKEND_KINDS, OTHER_KIND
from clairvoyant_cli.backends import kinds
from clairvoyant_cli.backends.adapter import Adapter, Found
from clairvoyant_cli.backends.prober import Ask


def _declared(name: str) -> Adapter:
    return cast(Adapter, import_module(f"{kinds.__name__}.{name.replace('-', '_')}").KIND)


PREFERRED: tuple[Adapter, ...] = tuple(_declared(name) for name in BACKEND_KINDS if name != OTHER_KIND)
"""In the order in which one is chosen if several run."""

ADAPTERS = tuple(sorted(PREFERRED, key=lambda kind: kind.TURN))
"""In the order in which a server is asked whether it is one."""


class Other(Adapter):
    """Any other OpenAI-compatible server."""

    async def identify(self, ask: Ask, url: str, prefix: str) -> Found | None:
        return Found(self, url, prefix) if (await ask(self.models_path)).status else None


OTHER = Other()


def adapter_of(name: str) -> Adapter:
    """Return the adapter of that name, as snapshots, profiles and the history have it."""
    return next((adapter for adapter in PREFERRED if adapter.name == name), OTHER)


ADVISED = adapter_of("ollama")  # where no server runs
