"""Raises the context that a request asks of Ollama (`num_ctx`) to that of its model as it is loaded, so that
the model is not loaded again (`--hold-context`).

That is decided when a request is sent: only then its server is known, and what that has loaded.
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
        """Raise the context of a request that is about to be sent to a server, if that is another than Ollama
        would keep. A request with another option of the runner is left as it is, and so is one whose model
        was loaded for such a request: the model is loaded again anyway.
        """
        parsed, loaded = exchange.asked.parsed, server.loaded
        asked = asked_context_alone(parsed)
        if asked is None or not request.is_kept or exchange.has_begun:
            return
        context = asked
        if loaded is not None and server.adapter.OPTIONS_RELOAD and loaded.is_plain(parsed.model):
            context = max(asked, await self._loaded_context(exchange, server))
        if context == asked_context(parsed):  # also of the attempt before, which another server may have got
            return
        await READING.next()
        with READING:
            body = with_context(b"".join(request.arrived), context)
            if body is None:
                return
            request.replace_body(body, OUTDATED)
        parsed.held_context, exchange.splice = context, None  # what was read of the body is outdated
        news = f"{exchange.job.client} asks for a smaller context of {parsed.model} than the {context} that"
        if context > asked and news not in self._told and len(self._told) < MOST_TOLD:
            self._told.add(news)
            self.say(logging.INFO, f"{news} are loaded: it gets them")

    async def _loaded_context(self, exchange: Exchange, server: Server) -> int:
        """Return the context in tokens that a request's model is loaded with, 0 if that is not known. Wait
        while the model is loaded with more for a request before it.
        """
        model, context = server.known_as(exchange.asked.parsed.model), 0
        with suppress(TimeoutError):
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                while True:
                    listed = loaded_models((await server.ask("/api/ps", LIST_TIMEOUT_S)).body) or ()
                    contexts = [each.context or 0 for each in listed if server.known_as(each.name) == model]
                    context = max(contexts, default=0)
                    if not self._loads_more(exchange, server, model, context):
                        break
                    await asyncio.sleep(LOOK_AGAIN_S)
        return context

    def _loads_more(self, exchange: Exchange, server: Server, model: str, context: int) -> bool:
        """Whether a server has got a request before this one for which it loads the model with more. It would
        not begin with that as long as others come for what is loaded.
        """
        offered = server.offered_model(model)
        most = (offered is not None and offered.context) or inf
        for each in self.dispatcher.attempts_on(server.id):  # in the order of their starts
            if each is exchange.attempt:
                break
            parsed = self.dispatcher.live[each.dispatch.job.id].asked.parsed
            waits = each.first_byte_s is None and server.known_as(parsed.model) == model
            if waits and min(asked_context(parsed) or 1, most) > context:
                return True
        return False
