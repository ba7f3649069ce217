"""Jan's local API server (src-tauri, proxy.rs)."""

from clairvoyant_cli.backends.adapter import Adapter, Found
from clairvoyant_cli.backends.prober import Ask
from clairvoyant_cli.http.heads import ResponseHead
from clairvoyant_cli.protocols.errors import Refusal, response
from clairvoyant_cli.protocols.routes import Route

NO_KEY = b"Invalid or missing authorization token"  # its refusal


class Jan(Adapter):
    """Passes requests on to a llama.cpp server for each model; wants a key, and errs in plain text."""

    name = "jan"
    title = "Jan"
    usual_ports = (1337,)
    start_command = "jan serve    # or Settings, Local API Server"
    REPORTS_LOADING = False

    async def identify(self, ask: Ask, url: str, prefix: str) -> Found | None:
        """Know it by its refusal of those who have no key; with one it answers like any other."""
        answer = await ask(self.models_path)
        return Found(self, url, prefix) if answer.status == 401 and NO_KEY in (answer.text or b"") else None

    def render(self, refusal: Refusal, route: Route) -> tuple[ResponseHead, bytes]:
        """Return a refusal in plain text."""
        return response(refusal, b"text/plain", refusal.message.encode())


KIND = Jan()
