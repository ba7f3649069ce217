"""Raises the context that a request asks of Ollama (`num_ctx`) to that of its model as it is loaded, so that
the model is not loaded again (`--hold-context`). That is decided when the request is sent: only then its
server is known, and what that has loaded.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf

from clairvoyant_cli.backends.priority import OUTDATED
from clairvoyant_cli.http.limits import READING
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.protocols.probes import loaded_models
from clairvoyant_cli.protocols.request_bodies import with_context
from clairvoyant_cli.proxy.queue.dispatcher import Dispatcher
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.proxy.servers.loaded_models import asked_context, asked_context_alone
from clairvoyant_cli.proxy.servers.server import Server

LIST_TIMEOUT_S = 1.0  # Ollama lists its models in milliseconds, but older versions not while one is loading
LOAD_TIMEOUT_S = 30.0  # a request waits no longer for the load that one before it has caused
LOOK_AGAIN_S = 0.1
MOST_TOLD = 100  # lines of the log


@dataclass(slots=True)
class HeldContexts:
    dispatcher: Dispatcher
    say: Callable[[int, str], None]
    _told: set[str] = field(default_factory=set)

    async def hold(self, exchange: Exchange, request: Request, server: Server) -> None:
        """Raise the context of a request that is about to be sent, unless other options of the runner, of it
        or of what is loaded, have the model loaded again anyway.
        """
        parsed, loaded = exchange.asked.parsed, server.loaded
        asked = asked_context_alone(parsed)
        if asked is None or loaded is None or not request.is_kept or exchange.has_begun:
            return
        plain = loaded.is_plain(parsed.model)
        context = max(asked, await self._loaded_context(exchange, server) if plain else 0)
        if context == asked_context(parsed):  # also of the attempt before, which another server may have got
            return
        await READING.next()
        if (body := with_context(b"".join(request.arrived), context)) is None:
            return
        request.replace_body(body, OUTDATED)
        parsed.held_context, exchange.splice = context, None  # what was read of the body is outdated
        news = f"{exchange.job.client} asks for a smaller context of {parsed.model} than the {context} that"
        if context > asked and news not in self._told and len(self._told) < MOST_TOLD:
            self._told.add(news)
            self.say(logging.INFO, f"{news} are loaded: it gets them")

    async def _loaded_context(self, exchange: Exchange, server: Server) -> int:
        """Return the context in tokens that a request's model is loaded with, 0 if that is not known. Wait
        while the model is to be loaded with more for a request before it: Ollama would not begin with that
        as long as others come for what is loaded.
        """
        model, context = server.known_as(exchange.asked.parsed.model), 0
        with suppress(TimeoutError):
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                while True:
                    listing = await server.ask("/api/ps", LIST_TIMEOUT_S)
                    models = loaded_models(listing.body)
                    listed = [
                        each.context or 0 for each in models or () if server.known_as(each.name) == model
                    ]
                    context = max(listed, default=0)
                    tells = context or not (listed or (models is None and listing.status))
                    if not tells or self._wanted_before(exchange, server, model) <= context:
                        break
                    await asyncio.sleep(LOOK_AGAIN_S)
        return context

    def _wanted_before(self, exchange: Exchange, server: Server, model: str) -> float:
        """Return the largest context that a server has to load a model with for the requests that it got
        before this one and has not begun to answer, 1 if that is not known, 0 if there are none.
        """
        wanted, offered = 0.0, server.offered_model(model)
        for attempt in self.dispatcher.attempts_on(server.id):  # in the order of their starts
            if attempt is exchange.attempt:
                break
            parsed = self.dispatcher.live[attempt.dispatch.job.id].asked.parsed
            if attempt.first_byte_s is None and server.known_as(parsed.model) == model:
                wanted = max(wanted, asked_context(parsed) or 1)
        return min(wanted, (offered is not None and offered.context) or inf)
