"""SGLang (python/sglang/srt/entrypoints/http_server.py)."""

from clairvoyant_cli.backends.adapter import LISTED_OR_LOCKED, Adapter, Found
from clairvoyant_cli.backends.asking import Ask
from clairvoyant_cli.backends.continuation import GO_ON
from clairvoyant_cli.protocols import probes

INFO_PATHS = ("/get_server_info", "/server_info")
"""The second is its newer name."""


class SgLang(Adapter):
    """Answers many requests at once, and orders its own queue by priority if it was started so."""

    name = "sglang"
    title = "SGLang"
    usual_ports = (30000,)
    start_command = "python -m sglang.launch_server --model-path MODEL"
    CANCELS = True
    CONTINUES = (GO_ON,)
    TAKES_PRIORITY = True
    SETS_LENGTH = True
    KNOWN_BY_PORT = False

    async def identify(self, ask: Ask, url: str, prefix: str) -> Found | None:
        """Know it by what it tells of itself."""
        if (await ask(self.models_path)).status not in LISTED_OR_LOCKED:
            return None
        version = await self.version(ask)
        return None if version is None else Found(self, url, prefix, version)

    async def version(self, ask: Ask) -> str | None:
        """Return its version; None if this is another server, "" if it does not say."""
        for path in INFO_PATHS:
            version = probes.sglang_version((await ask(path)).body)
            if version is not None:
                return version
        return None


ADAPTER = SgLang()
