"""Tells when a server answers a prompt without its beginning, because the prompt exceeds the context.

Ollama does this without an error. It drops the oldest messages, except system messages and the last. If the
rest is still too long, it keeps the first few tokens and the end, half of the context together
(server/prompt.go; llm/llama_server.go, completionPromptForRequest). Other servers refuse such prompts.

Rule: only what is certain is reported or refused, as characters say little about tokens.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from clairvoyant_cli.backends.kinds.ollama import full_name, larger_context
from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.protocols.errors import Refusal
from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.proxy.queue.exchange import Exchange, RequestEnd
from clairvoyant_cli.proxy.servers.loaded_models import asked_context
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.proxy.servers.service_times import ServiceTimes

CHARACTERS_A_TOKEN = 8.0
"""Upper bound for text: English has four to five, code and other scripts fewer. Only blanks and repeated
characters have more."""

BYTES_A_TOKEN = 4.0
KEPT = (4, 5)  # tokens of the beginning that Ollama keeps (`num_keep`), with one that begins every text
PLAUSIBLE = 0.9  # of the context: a shorter estimate is no sign that a prompt exceeds it
MAX_PROMPTS = 5000


@dataclass(frozen=True, slots=True)
class Length:
    """What is known of a prompt's tokens: the number at `least`, `about`, and at `most` plausible."""

    least: float
    about: float
    most: float


@dataclass(slots=True)
class Truncations:
    """Foresees and reports truncated prompts."""

    times: ServiceTimes
    say: Callable[[int, str], None]
    _read: OrderedDict[int, tuple[float, int, int]] = field(default_factory=OrderedDict)
    """End of a prompt that was read whole -> its characters, the length of its chain, and its tokens."""

    def length(self, parsed: ParsedRequest) -> Length:
        """Return what is known of a prompt's length. The tokens of a beginning that was read before count,
        unless the chat template may leave some of it out now.
        """
        if parsed.view is None:  # its size is known, not how much of it is text
            return Length(0.0, 0.0, 0.0)
        characters, chain = 4.0 * parsed.prompt_tokens, parsed.conversation.chain
        least = characters / CHARACTERS_A_TOKEN
        about = max(self.times.prompt_tokens(parsed), least)
        for piece in () if parsed.conversation.thinks else chain.hashes:
            if piece in self._read:
                of_characters, length, tokens = self._read[piece]
                more = max(characters - of_characters, 0.0)
                least = max(least, tokens + more / CHARACTERS_A_TOKEN)
                about = tokens * max(chain.length / length, 1.0)
        return Length(least, about, max(about, chain.length / BYTES_A_TOKEN))

    def refusal(self, parsed: ParsedRequest, able: Sequence[Server]) -> Refusal | None:
        """Return a refusal if every server that can serve a request would truncate its prompt."""
        contexts = [None if each.loaded is None else each.loaded.context_of(parsed) for each in able]
        most = max((each or 0 for each in contexts), default=0)
        least = self.length(parsed).least
        if None in contexts or least <= most:
            return None
        # Agents compact their conversation when they read this beginning.
        return Refusal(
            400,
            f"prompt is too long: {least:.0f} tokens > {most} maximum. Ollama would answer without its "
            f"beginning: set {larger_context(least)} (clairvoyant --refuse-truncated)",
            kind="truncated",
        )

    def header(self, exchange: Exchange) -> tuple[Header, ...]:
        """Return the header of an answer to a prompt that its server surely truncates."""
        loaded = None if exchange.attempt is None else self.times.pool.server_of(exchange).loaded
        context = None if loaded is None else loaded.context_of(exchange.asked.parsed)
        least = 0.0 if context is None else self.length(exchange.asked.parsed).least
        if context is None or least <= context:
            return ()
        return ((b"X-Clairvoyant-Truncated", b"tokens=%d, context=%d" % (least, context)),)

    def judge(self, exchange: Exchange, end: RequestEnd) -> None:
        """Mark and report a prompt that was truncated, by the tokens that its server says to have read."""
        attempt, server = exchange.attempt, self.times.pool.server_of(exchange)
        if attempt is None or server.loaded is None or exchange.parts:
            return
        totals, parsed = attempt.totals, exchange.asked.parsed
        if not totals.complete or not totals.prompt_tokens:
            return
        read, length = totals.prompt_tokens, self.length(parsed)
        model = full_name(parsed.model)
        listed = (each.context for each in server.status.models if full_name(each.name) == model)
        context = asked_context(parsed) or next(listed, None)
        if context and is_truncated(length, read, context, counts_cached=totals.cached_tokens is not None):
            exchange.is_truncated = True
            server.truncated += 1
            server.cut_to = round(length.about), context
            exchange.remark = f"prompt of about {length.about:,.0f} tokens cut to the context of {context:,}"
            news = f"{server.name} read {read:,} tokens of {exchange.id}: {exchange.remark}"
            self.say(logging.WARNING, f"{news}; set {larger_context(length.about)}")
        elif parsed.conversation.chain.hashes and read >= 4.0 * parsed.prompt_tokens / CHARACTERS_A_TOKEN:
            chain = parsed.conversation.chain
            self._read[chain.hashes[-1]] = 4.0 * parsed.prompt_tokens, chain.length, read
            if len(self._read) > MAX_PROMPTS:
                self._read.popitem(last=False)


def is_truncated(length: Length, read: int, context: int, *, counts_cached: bool) -> bool:
    """Return whether a server truncated a prompt, given the tokens that it reports to have `read`.

    It did if even the least estimate of the prompt exceeds the context, if it read half of its context to the
    token, or if it read fewer tokens than the prompt has. Without `counts_cached`, cached tokens are not in
    `read`.
    """
    if read > context:
        return False  # the context is another by now
    halved = read in [context - max((context - kept) // 2, 1) for kept in KEPT]
    whole = counts_cached or 2 * read > context
    return (
        length.least > context
        or (halved and length.most >= PLAUSIBLE * context)
        or (whole and read < length.least and length.about > context)
    )
