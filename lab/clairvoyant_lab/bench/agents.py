"""Measures sessions of coding agents behind a server, and a person beside them: plan, runs and figures."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random
from statistics import fmean
from typing import Any

import httpx
import msgspec

from clairvoyant_cli.backends.adapters import OTHER
from clairvoyant_cli.backends.chat_probe import client_for
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.proxy.access.keys import read_backend_key
from clairvoyant_cli.proxy.daemon import running_daemon
from clairvoyant_cli.proxy.requests.encoder import Encode
from clairvoyant_lab.bench.arms import CLAIRVOYANT, DIRECT, SERIAL
from clairvoyant_lab.bench.asker import Asker, Call, ask_alone
from clairvoyant_lab.bench.prompts import Question
from clairvoyant_lab.bench.report import Findings
from clairvoyant_lab.bench.setup import (
    REPLAY,
    VIRTUAL_STRIDE,
    backend,
    clock_of,
    first_model,
    unlimited,
)
from clairvoyant_lab.bench.summary import Key, Summary, compare
from clairvoyant_lab.replay import Engine, Speed
from clairvoyant_lab.replay.engine import WORDS
from clairvoyant_lab.replay.kv_cache import CHARS_PER_TOKEN, KvCache
from clairvoyant_lab.report import Cell as Figure
from clairvoyant_lab.report import Report, Table, figures
from predictor.record import Predictor
from profiles.percentiles import percentile

SESSION_HEADER = "X-Session-Id"
TASK = "Find out why the last test fails, and correct the program."
GROWTH_TOKENS = (60, 150)  # limits of a tool result's length
GAP_S = (0.25, 0.75)  # limits of the time from the end of a turn to the next turn
CHAT_TOKENS = 24
REPLAY_SPEED = Speed(prefill_tokens_per_s=100.0, decode_tokens_per_s=60.0)
"""SmolLM2 on one thread of a small machine."""

UNITS = {"prompt tokens": "count", "time": "s", "first token": "s", "requests": "count"}
"""The groups of figures, and their units."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a session sends. `results` of a tool precede the second and later turns, each after its gap."""

    name: str
    system: str
    tools: list[dict[str, Any]]
    results: tuple[str, ...]
    gaps_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class AgentLoad:
    """Sessions of agents. Lengths are in tokens of four characters.

    `common` is the share of the system text, at its beginning, that all sessions have in common. The person
    asks every `chat_every_s` seconds, 0 for never.
    """

    sessions: int = 3
    turns: int = 5
    context: int = 450
    answer: int = 32
    common: float = 0.0
    chat_every_s: float = 12.0
    headers: bool = True
    seed: int = 0

    def conversations(self, run: int, nonce: str) -> list[Conversation]:
        """Return what the sessions of a run send; `nonce` begins every text that is read first."""
        return [self._conversation(run, nonce, number) for number in range(self.sessions)]

    def _conversation(self, run: int, nonce: str, number: int) -> Conversation:
        shared, own = self._random(run, "common"), self._random(run, number)
        opening = nonce if self.common else f"{nonce}{number}"
        tools = [_tool(opening, "read_file", "path"), _tool(opening, "run", "command")]
        chars = self.context * CHARS_PER_TOKEN - len(msgspec.json.encode(tools)) - len(TASK)
        room = max(CHARS_PER_TOKEN, chars)
        cut = round(room * self.common)
        system = f"{opening} {_text(shared, cut)}{_text(own, room - cut)}"[:room]
        sizes = [own.randint(*GROWTH_TOKENS) for _ in range(self.turns - 1)]
        gaps_s = (0.0, *(own.uniform(*GAP_S) for _ in sizes))
        results = tuple(_text(own, size * CHARS_PER_TOKEN) for size in sizes)
        return Conversation(f"{nonce}-{number}", system, tools, results, gaps_s)

    def question(self, run: int, nonce: str, number: int) -> Question:
        text = f"{nonce} {_text(self._random(run, f'chat {number}'), CHAT_TOKENS * CHARS_PER_TOKEN)}?"
        return Question(text, self.answer, "chat", max_tokens=self.answer)

    def _random(self, run: int, name: object) -> Random:
        return Random(f"{self.seed}:{run}:{name}")  # noqa: S311 - repeatable, keeps no secret


def _tool(opening: str, name: str, argument: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "description": opening, "parameters": parameters}}


def _text(rng: Random, chars: int) -> str:
    """Return a text of about four characters a token for common tokenizers: three words and a number."""
    text = ""
    while len(text) < chars:
        text += f"{' '.join(rng.choices(WORDS, k=3))} {rng.randrange(10, 100)} "
    return text[:chars]


@dataclass(slots=True)
class Run:
    """One run of an arm: the calls of every session, and the person's. Times are on the asker's clock."""

    begun_s: float
    shared_tokens: float = 0.0
    replayed: bool = False
    sessions: list[list[Call]] = field(default_factory=list)
    chats: list[Call] = field(default_factory=list)

    def figures(self) -> dict[Key, float]:
        """Return the figures of the run; ClairvoyantError if no turn was answered. A figure is missing
        where the server does not report what it is made of.
        """
        turns = [call for calls in self.sessions for call in calls]
        calls = [*turns, *self.chats]
        answered = [call for call in calls if call.error is None]
        if all(call.error for call in turns):
            raise ClairvoyantError(f"no session gets an answer: {turns[0].error}")
        begun_s = [calls[0].sent_s or 0.0 for calls in self.sessions]
        ended_s = [calls[-1].ended_s or 0.0 for calls in self.sessions]
        took_s = [end_s - start_s for start_s, end_s in zip(begun_s, ended_s, strict=True)]
        found: dict[Key, float] = {
            ("time", "all done"): max(ended_s) - self.begun_s,
            ("time", "session mean"): fmean(took_s),
            ("time", "session worst"): max(took_s),
            ("requests", "answered"): len(answered),
            ("requests", "failed"): len(calls) - len(answered),
        }
        if all(call.prompt_tokens for call in answered):
            found["prompt tokens", "sent"] = sum(call.prompt_tokens or 0 for call in answered)
            if all(call.read_tokens for call in answered):
                read = sum(call.read_tokens or 0 for call in answered)
                found["prompt tokens", "read"] = read
                found["prompt tokens", "read again"] = max(0.0, read - self._first_seen())
        if firsts_s := sorted(call.ttft_s for call in turns if call.ttft_s is not None):
            found["first token", "turn mean"] = fmean(firsts_s)
            found["first token", "turn P95"] = percentile(firsts_s, 0.95)
            found["first token", "turn worst"] = firsts_s[-1]
        if firsts_s := [call.ttft_s for call in self.chats if call.ttft_s is not None]:
            found["first token", "person mean"] = fmean(firsts_s)
        return found

    def _first_seen(self) -> float:
        seen = float(sum(call.prompt_tokens or 0 for call in self.chats)) - self.shared_tokens
        for calls in self.sessions:
            before = 0
            for call in calls:
                if call.error is None:
                    seen += (call.prompt_tokens or 0) - before
                    # The simulated server has words of several tokens in prompts, of one in answers.
                    said = len(call.text) // CHARS_PER_TOKEN if self.replayed else call.tokens
                    before = (call.prompt_tokens or 0) + said
        return seen


@dataclass(frozen=True, slots=True)
class _Sessions:
    """Sends the sessions of a load through a client."""

    load: AgentLoad
    asker: Asker
    replayed: bool

    async def run(self, client: httpx.AsyncClient, arm: str, number: int) -> Run:
        load, asker = self.load, self.asker
        # A real server may still hold the texts of an earlier bench. Digits have a token each in most
        # vocabularies, so the texts of all arms have one length.
        drawn = Random(f"{load.seed}:{number}:{arm}" if self.replayed else None)  # noqa: S311 - keeps no secret
        nonce = f"{drawn.randrange(10**8):08d}"
        await ask_alone(client, asker, [load.question(number, nonce[::-1], 0)])  # loads the model
        conversations = load.conversations(number, nonce)
        done = asyncio.Event()
        # About the tokens that all sessions but the first have in common with it.
        shared_tokens = (load.sessions - 1) * load.common * load.context
        run = Run(asker.now(), shared_tokens, self.replayed)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._chat(client, number, nonce, run, done))
            if arm == SERIAL:
                for each in conversations:
                    run.sessions.append(await self._converse(client, each))
            else:
                sessions = [group.create_task(self._converse(client, each)) for each in conversations]
                run.sessions += await asyncio.gather(*sessions)
            done.set()
        return run

    async def _converse(self, client: httpx.AsyncClient, said: Conversation) -> list[Call]:
        """Take the turns of a session until one fails."""
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": said.system},
            {"role": "user", "content": TASK},
        ]
        headers = {SESSION_HEADER: said.name} if self.load.headers else None
        calls: list[Call] = []
        for number, gap_s in enumerate(said.gaps_s):
            await asyncio.sleep(gap_s)
            if number:
                result = said.results[number - 1]
                messages.append({"role": "assistant", "content": calls[-1].text})
                messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": result})
            calls.append(Call(Question("", self.load.answer, "turn", max_tokens=self.load.answer)))
            await self.asker.ask(client, calls[-1], {"messages": messages, "tools": said.tools}, headers)
            if calls[-1].error is not None:
                break
        return calls

    async def _chat(
        self, client: httpx.AsyncClient, number: int, nonce: str, run: Run, done: asyncio.Event
    ) -> None:
        """Ask the person's questions, one at a time, until the sessions are done."""
        every_s = self.load.chat_every_s
        while every_s and not done.is_set():
            try:
                await asyncio.wait_for(done.wait(), every_s - (self.asker.now() - run.begun_s) % every_s)
            except TimeoutError:
                run.chats.append(Call(self.load.question(number, nonce, len(run.chats) + 1)))
                await self.asker.ask(client, run.chats[-1])


async def measure_agents(
    load: AgentLoad,
    server: str,
    arms: Sequence[str],
    runs: int,
    config: ServeConfig,
    new_predictor: Callable[[], Predictor],
    encode: Encode | None,
    on_progress: Callable[[float, str], None],
    *,
    model: str | None,
    cache: int,
    virtual_time: bool,
) -> tuple[list[Summary], dict[str, str]]:
    """Run every arm; return summaries, with changes against the direct arm, and a description of the server.

    `config` is that of the Clairvoyant which is started for each arm but those that go straight to the server
    or to another proxy (NAME=URL). The host memory of the simulated server holds `cache` tokens.
    """
    engine, slots = None, config.slots
    if server == REPLAY:
        slots = slots or 1
        stride = VIRTUAL_STRIDE if virtual_time else 1
        engine = Engine(slots, REPLAY_SPEED, stride, answer_tokens=unlimited, cache=KvCache(slots, cache))
    key = read_backend_key(config.backend_key_file)
    clock = clock_of(virtual_time)
    cache_sizes: dict[str, tuple[float, float]] = {}
    names = [arm.partition("=")[0] for arm in arms]
    measured: dict[tuple[str, str], dict[int, dict[Key, float]]] = {("agents", name): {} for name in names}

    async with backend(server, key, engine) as found:

        @asynccontextmanager
        async def client_of(arm: str) -> AsyncIterator[httpx.AsyncClient]:
            url = found.url if arm in (DIRECT, SERIAL) else arm.partition("=")[2]
            if url:
                async with client_for(url, key if url == found.url else None) as client:
                    yield client
                return
            policy = None if arm == CLAIRVOYANT else arm
            own = replace(config, backend=found.base_url, slots=slots, policy=policy)
            async with (
                running_daemon(own, new_predictor(), clock=clock, encode=encode) as daemon,
                client_for(daemon.base_url) as client,
            ):
                known = daemon.pool.queue.fleet.servers[daemon.pool.first.id].cache
                known.size = cache_sizes.get(arm, known.size)
                yield client
                cache_sizes[arm] = known.size

        # The simulated server reports its cache in OpenAI's format.
        adapter = found.adapter if engine is None else OTHER
        asked = model or await first_model(found, key)
        asker = Asker(asked, adapter, prefix=found.prefix, clock=clock, keeps_words=True)
        sessions = _Sessions(load, asker, engine is not None)
        for step in range(runs * len(arms)):
            number, place = divmod(step, len(arms))
            arm = arms[(place + number) % len(arms)]  # each run begins with another arm
            on_progress(step, f"run {number + 1}, {arm}")
            async with client_of(arm) as client:
                run = await sessions.run(client, arm, number)
            measured["agents", arm.partition("=")[0]][number] = run.figures()
    read, write = REPLAY_SPEED.prefill_tokens_per_s, REPLAY_SPEED.decode_tokens_per_s
    simulated = f"simulated: prefill {read:g}, decode {write:g} tokens/s, host cache {cache} tokens"
    about = {
        "backend": simulated if engine is not None else f"{found.adapter.name} {found.version}".rstrip(),
        "model": asked,
        "slots": "as the server states" if slots is None else str(slots),
    }
    return compare(measured, DIRECT if DIRECT in names else None), about


def agents_report(findings: Findings) -> Report:
    """Return the report: a table for each group of figures, and the changes against the direct arm."""

    def cells(group: str) -> Iterator[Figure]:
        for each in findings.summaries:
            for (kind, name), found in each.figures.items():
                if kind == group:
                    yield Figure(each.arm, name, found, UNITS[group])

    changes = (
        Figure(each.arm, f"{name} tokens" if kind == "prompt tokens" else name, change, "%")
        for each in findings.summaries
        for (kind, name), change in each.changes.items()
        if each.arm != each.baseline and kind != "requests"
    )
    about = Table("Measured on", ("",), tuple(findings.about.items()))
    tables = [figures(group.capitalize(), cells(group)) for group in UNITS]
    tables.append(figures(f"Change against {DIRECT}", changes))
    return Report(
        findings.title,
        tables=(about, *(each for each in tables if each.cells)),
        notes=findings.notes,
        command=findings.command,
    )


def agents_notes(load: AgentLoad, runs: int) -> Iterator[str]:
    """Yield what a reader must know to read the figures correctly."""
    person = f" A person asks a short question every {load.chat_every_s:g} s." if load.chat_every_s else ""
    yield (
        f"{load.sessions} sessions of {load.turns} turns, each with about {load.context} tokens at first,"
        f" {GROWTH_TOKENS[0]} to {GROWTH_TOKENS[1]} more a turn, answers of {load.answer} at most.{person}"
    )
    yield f"Mean over {'1 run' if runs == 1 else f'{runs} runs'}; the arms took turns."
    yield (
        "Tokens read are those that the server evaluated. Read again are those that it would not have read if"
        " it forgot nothing, about. A session's time is from its first request to its last answer; in the arm"
        f" {SERIAL} it does not include waiting for other sessions."
    )
    if runs > 1:
        yield "From the second run on, Clairvoyant knows what it learned of the size of the cache."
