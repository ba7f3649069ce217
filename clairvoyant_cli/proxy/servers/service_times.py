"""Estimates service times from predicted lengths, and learns the servers' speeds from their answers."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import median_low

from clairvoyant_cli.backends.kinds.ollama import full_name
from clairvoyant_cli.backends.speeds import Speeds
from clairvoyant_cli.protocols.media import Medium
from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.proxy.queue.ended import NOWHERE, Ended, Outcome, PromptUse
from clairvoyant_cli.proxy.queue.exchange import Attempt, Exchange, RequestEnd
from clairvoyant_cli.proxy.servers.loaded_models import asked_context
from clairvoyant_cli.proxy.servers.pool import ServerPool
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.proxy.servers.silence import FORGETTING
from clairvoyant_cli.scheduler.chain import MEDIUM_CHARACTERS
from clairvoyant_cli.scheduler.job import Estimates
from predictor.record import Prediction

NEARLY_FULL = 0.9  # of a context
USUAL_RATIO = 0.25  # tokens a character, before anything is learned
MEDIUM_TOKENS = MEDIUM_CHARACTERS * USUAL_RATIO  # of a picture or another medium, likewise
# A shorter prompt tells more of the chat template than of how many tokens a character makes.
TELLING_CHARACTERS = 400
READ_SHARE = 0.25  # of the time that a whole prompt takes, in which it was certainly not read
TELLING_S = 0.5  # where a prompt is read sooner, the time of an answer does not tell what was cached
WEIGHT = 0.3  # of the latest value in a mean
MOST_AT_ONCE = 4.0  # factor by which one value may differ from the mean, to count in full
MOST_CLIENTS = 256
MOST_KEYS = 64  # for each client


@dataclass(slots=True)
class Mean:
    value: float
    learned: int = 1


@dataclass(slots=True)
class ClientMeans:
    """Running means of what requests turned out to take, by client and key: what a client chooses, such as a
    model's name, or how long a recording claims to be, changes little for others. Beyond the limits, the
    clients without recent answers are forgotten, and of one client the keys with the fewest.
    """

    _known: OrderedDict[str, dict[Hashable, Mean]] = field(default_factory=OrderedDict)

    def get(self, key: Hashable, client: str = "") -> float | None:
        """Return a client's mean; one without any has the median of the others'. None if nobody has one."""
        own = self._known.get(client, {}).get(key)
        if own is not None:
            return own.value
        values = [means[key].value for means in self._known.values() if key in means]
        return median_low(values) if values else None

    def learn(self, key: Hashable, client: str, value: float) -> None:
        """Learn a value, which is not negative."""
        means = self._known.setdefault(client, {})
        self._known.move_to_end(client)
        if len(self._known) > MOST_CLIENTS:
            self._known.popitem(last=False)
        mean = means.get(key)
        if mean is not None:
            near = min(max(value, mean.value / MOST_AT_ONCE), mean.value * MOST_AT_ONCE)
            mean.value += WEIGHT * (near - mean.value)
            mean.learned += 1
            return
        if len(means) >= MOST_KEYS:
            del means[min(means, key=lambda each: means[each].learned)]
        means[key] = Mean(value)


@dataclass(slots=True)
class ServiceTimes:
    """Service times on the servers of a pool."""

    pool: ServerPool
    say: Callable[[int, str], None]
    tokens_per_character: ClientMeans = field(default_factory=ClientMeans)  # of text, by model
    tokens_per_medium: ClientMeans = field(default_factory=ClientMeans)  # by model, kind, and size
    # Of requests for sound and images, by what is counted (`ParsedRequest.amount_kind`), and model.
    seconds_per_amount: ClientMeans = field(default_factory=ClientMeans)

    def prompt_tokens(self, parsed: ParsedRequest) -> float:
        """Return the expected number of tokens of a prompt, of its text and its media."""
        tokens, of_each = self._expected_tokens(parsed)
        for medium, count in parsed.conversation.media.items():
            tokens += count * of_each[medium]
        return tokens

    def _expected_tokens(self, parsed: ParsedRequest) -> tuple[float, dict[Medium, float]]:
        """Return the expected tokens of a prompt's text, and of each medium of a kind and size in it."""
        model, client, chain = parsed.model, parsed.client, parsed.conversation.chain
        text_tokens = parsed.prompt_tokens
        if chain.hashes:
            ratio = self.tokens_per_character.get(model, client)
            text_tokens = (USUAL_RATIO if ratio is None else ratio) * chain.text_length
        of_each = {}
        for medium in parsed.conversation.media:
            known = self.tokens_per_medium.get((model, medium), client)
            if known is None:  # of its size: of any
                known = self.tokens_per_medium.get((model, medium.kind), client)
            of_each[medium] = MEDIUM_TOKENS if known is None else known
        return text_tokens, of_each

    def has_room(self, parsed: ParsedRequest) -> bool:
        """Whether a prompt may grow by some tokens, as its model's context is not nearly full."""
        name = full_name(parsed.model)
        contexts = [
            model.context
            for server in self.pool
            for model in server.status.models
            if model.context and (server.loaded is None or full_name(model.name) == name)
        ]
        context = asked_context(parsed) or min(contexts, default=inf)
        return self.prompt_tokens(parsed) <= NEARLY_FULL * context

    def estimates(self, parsed: ParsedRequest, prediction: Prediction, prompt_tokens: float) -> Estimates:
        """Return what the scheduler orders a request by, given the prediction of its length: service times
        are those on the fastest server that is up, in seconds.
        """
        servers: Sequence[Server] = self.pool
        if len(servers) > 1:
            servers = [server for server in servers if not server.away] or servers
        tokens = prediction.expected_tokens * parsed.choices
        tokens_q90 = prediction.q90_tokens * parsed.choices
        if parsed.amount_kind:
            key = (parsed.amount_kind, parsed.model)
            if (seconds := self.seconds_per_amount.get(key, parsed.client)) is not None:
                token_s = min(server.speeds.seconds(0.0, 1.0) for server in servers)
                tokens = tokens_q90 = seconds * parsed.amount / token_s
        cost_s = min([server.speeds.seconds(prompt_tokens, tokens) for server in servers])
        return Estimates(p_long=prediction.p_long, cost_s=cost_s, tokens=tokens, tokens_q90=tokens_q90)

    def ended(self, ended: Ended) -> None:
        """Learn from an answer that ended; incomplete ones tell nothing about speed."""
        completed = ended.outcome is Outcome.COMPLETED
        if ended.amount and completed and ended.last is not NOWHERE:
            key = ended.amount_kind, ended.model
            self.seconds_per_amount.learn(key, ended.principal, ended.service_s / ended.amount)
        server, totals, prompt = self.pool.by_id.get(ended.last.server_id), ended.totals, ended.prompt
        if server is None or not totals.complete:
            return
        server.silences.longest_s *= FORGETTING
        decode_s, in_one_part = totals.decode_s, not (ended.cuts or ended.repeats)
        if not decode_s and ended.last.first_byte_s is not None and ended.stream and in_one_part:
            decode_s = ended.ended_s - ended.last.first_byte_s
        # Without a number of cached tokens, Ollama counts all as read.
        counts = prompt.cached_tokens is not None or not prompt.expected_cached_tokens
        prefilled = prompt.read_tokens if counts and not ended.has_media else None
        # A tool's call may come in one event, however long it is.
        events = ended.last.events if in_one_part and not totals.calls_tool else 0
        server.speeds.learn(totals.tokens, decode_s, prefilled, totals.prefill_s, events)

    def settle(self, exchange: Exchange, end: RequestEnd) -> None:
        """Have the scheduler's account of the KV cache follow what the server reports of an answer, as far as
        that can be believed.
        """
        attempt, job = exchange.attempt, exchange.job
        if attempt is None:
            return
        server, totals = self.pool.server_of(exchange), attempt.totals
        attempt.prompt = prompt = _prompt_use(attempt, attempt.run.expected_cache.tokens, server.speeds)
        if not (totals.complete and job.prefix.hashes):
            return
        prompt_tokens = totals.prompt_tokens
        if prompt_tokens is None:
            prompt_tokens = round(job.prompt_tokens)
        elif not exchange.is_truncated:
            self._learn_prompt(exchange.asked.parsed, prompt_tokens)
        cached_tokens: float | None = prompt.cached_tokens
        whole_s = server.speeds.read_s(prompt_tokens)
        if cached_tokens is None and server.speeds.prefill_tokens_per_s is not None and whole_s >= TELLING_S:
            read_s = totals.prefill_s  # it tells by how long the rest took to read
            if read_s is None:
                read_s = end.at_s - attempt.run.started_s - server.speeds.seconds(0.0, totals.tokens or 0)
            cached_tokens = prompt_tokens * (1.0 - min(max(read_s / whole_s, 0.0), 1.0))
        news = self.pool.queue.answered(
            exchange.id,
            prompt_tokens,
            totals.tokens or 0,
            cached_tokens,
            calls_tool=totals.calls_tool,
            now=end.at_s,
        )
        if news:
            self.say(logging.WARNING, news)

    def _learn_prompt(self, parsed: ParsedRequest, prompt_tokens: int) -> None:
        """Learn how many tokens a character takes or, of a prompt with media, how many these take: all that
        its text does not, in proportion to what was expected of each.
        """
        client, model, media = parsed.client, parsed.model, parsed.conversation.media
        length = parsed.conversation.chain.text_length
        if media:
            text_tokens, of_each = self._expected_tokens(parsed)
            expected = {medium: max(tokens, 1.0) for medium, tokens in of_each.items()}
            times = max(prompt_tokens - text_tokens, 0.0) / sum(
                count * expected[medium] for medium, count in media.items()
            )
            for medium, tokens in expected.items():
                for key in ((model, medium), (model, medium.kind)):
                    self.tokens_per_medium.learn(key, client, times * tokens)
        elif length >= TELLING_CHARACTERS:
            self.tokens_per_character.learn(model, client, prompt_tokens / length)


def _prompt_use(attempt: Attempt, expected_cached_tokens: float, speeds: Speeds) -> PromptUse:
    """Return what an attempt's server tells of its prompt, unless that cannot have been read in the time:
    some servers report 0 cached tokens of a prompt that they kept.
    """
    totals = attempt.totals
    if totals.complete and totals.cached_tokens == 0 and speeds.prefill_tokens_per_s is not None:
        whole_s, read_s = speeds.read_s(totals.prompt_tokens or 0), totals.prefill_s
        if read_s is None and attempt.first_byte_s is not None:
            read_s = attempt.first_byte_s - attempt.run.started_s
        if read_s is not None and whole_s >= TELLING_S and read_s <= READ_SHARE * whole_s:
            return PromptUse(expected_cached_tokens)
    return PromptUse(expected_cached_tokens, totals.cached_tokens, totals.read_tokens)
