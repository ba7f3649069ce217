"""Serves `clairvoyant top --web`: the dashboard in a browser, a `top` process per page, by textual-serve.

The command is fixed: nothing that a page sends becomes a part of it. Who sees a page can control the daemon,
so access is checked as there: loopback only unless there is a token, no pages or names of other sites, and
the daemon's token. A page loads nothing from elsewhere.
"""

import hmac
import shlex
import sys
from collections.abc import Awaitable, Callable, Sequence

import click
from aiohttp import web
from textual_serve.server import Server

from clairvoyant_cli.addresses import is_loopback
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.proxy.access.origins import AllowedOrigins
from clairvoyant_cli.state.client import as_its_owner

USUAL_ADDRESS = "127.0.0.1:7118"
COOKIE = "clairvoyant_top"
MAX_PAGES = 16
"""Each has a process of some 60 MB."""

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-inline'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Pages(Server):
    """Serves `command`; with a `token`, only to those who send it."""

    def __init__(self, command: Sequence[str], host: str, port: int, token: str | None) -> None:
        super().__init__(f"exec {shlex.join(command)}", host, port, title="clairvoyant top")
        self._token = token
        self._walls = AllowedOrigins()
        self._open = 0

    def initialize_logging(self) -> None:
        """Leave logging as it is."""

    async def on_startup(self, app: web.Application) -> None:
        """Print the address."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104 - compared
        host = f"[{host}]" if ":" in host else host
        end = "" if self._token is None else f"?token={self._token}"
        click.echo(f"clairvoyant top: http://{host}:{self.port}/{end}   (Ctrl-C ends it)")

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(self._guard)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        why = self._objection(request)
        if why is not None:
            return web.Response(status=403, text=f"clairvoyant: {why}\n", headers=HEADERS)
        if self._token is not None and not self._knows(request.cookies.get(COOKIE, "")):
            if not self._knows(request.query.get("token", "")):
                text = "clairvoyant: open the address that `clairvoyant top --web` printed, with its token\n"
                return web.Response(status=401, text=text, headers=HEADERS)
            welcome = web.Response(status=303, headers=HEADERS | {"Location": "/"})
            welcome.set_cookie(COOKIE, self._token, httponly=True, samesite="Strict")
            return welcome
        if request.path == "/ws":
            return await self._page(request, handler)
        self.public_url = f"{request.scheme}://{request.host}"  # read before anything else can run
        response = await handler(request)
        response.headers.update(HEADERS)
        return response

    async def _page(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._open >= MAX_PAGES:
            return web.Response(status=503, text="clairvoyant: too many pages are open\n")
        self._open += 1
        try:
            return await handler(request)
        finally:
            self._open -= 1

    def _objection(self, request: web.Request) -> str | None:
        if not self._walls.answers_to(request.host.lower()):
            return "unknown Host; open the page by this machine's address"
        origin = request.headers.get("Origin")
        ours = origin is None or origin == f"{request.scheme}://{request.host}"
        return None if ours else "requests from other sites' pages are refused"

    def _knows(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), (self._token or "").encode())


def serve_pages(address: str, url: str, token: str | None, options: Sequence[str]) -> None:
    """Serve the dashboard of the daemon at `url` until Ctrl-C. Without a `token`, that of a daemon of this
    account is used.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ClairvoyantError(
            f"--web {address}: give HOST:PORT, as in --web {USUAL_ADDRESS}", ExitCode.USAGE
        )
    if not is_loopback(host) and token is None:
        raise ClairvoyantError(
            "beyond loopback --web wants the daemon's admin token; give --token-file", ExitCode.USAGE
        )
    command = (sys.executable, "-P", "-m", "clairvoyant_cli", "top", "--url", url, *options)
    Pages(command, host.strip("[]"), int(port), token or as_its_owner(url)[1]).serve()
