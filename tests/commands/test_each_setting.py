"""Each setting of `serve` changes something: a row for each, and what is there with it and without it."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.commands import serve
from clairvoyant_cli.commands.log import log_of
from clairvoyant_cli.commands.setup import load_working_predictor, open_ledger, second_opinion
from clairvoyant_cli.config import BackendConfig, PrefixRules, ServeConfig
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.proxy.access.clients import Clients
from clairvoyant_cli.proxy.access.clients_file import access_of, clients_file_of
from clairvoyant_cli.proxy.access.keys import Access
from clairvoyant_cli.proxy.composition import policy_of
from clairvoyant_cli.proxy.observing.traces import traces_to
from clairvoyant_cli.proxy.requests.admission import Refused
from clairvoyant_cli.proxy.servers.find_servers import find_servers
from clairvoyant_cli.proxy.servers.own_server import own_server
from clairvoyant_cli.proxy.servers.server import Server
from tests.fakes.daemon_parts import DaemonParts, asking, simulated_server

NOTHING_THERE = "http://127.0.0.1:9"
FILES = {
    "keys": "ann:a-key-of-twenty-letters\n",
    "clients.toml": "[clients.ann]\nmax_waiting = 2\n",
    "token": "an-admin-token\n",
    "key": "a-key-of-the-backend\n",
}

Look = Callable[[ServeConfig], Coroutine[Any, Any, object]]


def composed(look: Callable[[DaemonParts], object]) -> Look:
    """Look at a daemon as it is composed."""

    async def seen(config: ServeConfig) -> object:
        return look(DaemonParts(config, Clients(), [simulated_server(0, "mac", adapter_of("ollama"), 1)]))

    return seen


def granted(look: Callable[[Access], object]) -> Look:
    """Look at who is let in."""

    async def seen(config: ServeConfig) -> object:
        return look(access_of(config, clients_file_of(config, exposed=False)))

    return seen


def found(look: Callable[[Server], object]) -> Look:
    """Look at the server that is found."""

    async def seen(config: ServeConfig) -> object:
        [server] = await find_servers(replace(config, backend=NOTHING_THERE), [])
        await server.close()
        return look(server)

    return seen


def configured(look: Callable[[ServeConfig], object]) -> Look:
    """Look at what is made of the configuration alone."""

    async def seen(config: ServeConfig) -> object:
        return look(config)

    return seen


def opened(look: Callable[[Any], object]) -> Look:
    """Look at how the database is opened."""

    async def seen(config: ServeConfig) -> object:
        with patch("profiles.ledger.Ledger") as ledger:
            open_ledger(config)
        return look(ledger.call_args)

    return seen


def admitted(parts: DaemonParts) -> int:
    """Return how many requests find a place."""
    answers = [parts.ask(f"0.5 {number}") for number in range(8)]
    return sum(not isinstance(each, Refused) for each in answers)


def answers_too_long(parts: DaemonParts) -> int:
    """Return the status of a request whose prompt is longer than the context."""
    server = SimpleNamespace(loaded=SimpleNamespace(context_of=lambda _: 1))
    parsed, check = parts.queued("0.5").asked.parsed, parts.admission.check
    refusal = None if check is None else check(parsed, cast(Any, [server]))
    return 0 if refusal is None else refusal.status


def second_is_refused(parts: DaemonParts) -> bool:
    parts.queued("0.5")
    return isinstance(parts.ask("0.5"), Refused)


async def started(config: ServeConfig) -> object:
    async with own_server(config) as own:
        return None if own is None else own.arguments


async def logged_at(config: ServeConfig) -> object:
    with patch("logging.basicConfig") as to, log_of(config):
        return to.call_args.kwargs["level"]


async def logged_to(config: ServeConfig) -> object:
    with log_of(config):
        return "a.log" in os.listdir()  # noqa: PTH208 - of the working directory


async def traced(config: ServeConfig) -> object:
    traces = traces_to(config.otlp_endpoint)
    if traces is not None:
        await traces.close()
    return traces is not None


async def frozen(config: ServeConfig) -> object:
    ledger = open_ledger(replace(config, db="frozen.db"))
    assert ledger is not None
    parts = DaemonParts(config, Clients(), [simulated_server(0, "mac", adapter_of("ollama"), 1)])
    parts.remember(ledger)
    for task in parts.tasks:
        task.cancel()
    ledger.close()
    return parts.pool.first.speeds.frozen


def predicts(config: ServeConfig) -> str:
    with suppress(ClairvoyantError):
        return load_working_predictor(config).name
    return "there is none"


async def self_tests(config: ServeConfig) -> object:
    """Return whether the self-test runs."""
    ran: list[bool] = []

    class SelfTest:
        def __init__(self, daemon: object, storage: object) -> None:
            """Take what the self-test takes."""

        async def run(self) -> None:
            ran.append(True)

    @asynccontextmanager
    async def daemon_of(
        config: ServeConfig, predictor: object, *, self_test: Any, **parts: object
    ) -> AsyncIterator[None]:
        await self_test(SimpleNamespace(state_saver="there is one"))
        raise ClairvoyantError("that is enough")
        yield

    with (
        patch("clairvoyant_cli.proxy.daemon.running_daemon", daemon_of),
        patch("clairvoyant_cli.calibrate.self_test.SelfTest", SelfTest),
        suppress(ClairvoyantError),
    ):
        await serve._serve(replace(config, db="tested.db"))
    return bool(ran)


PAGE = asking(Origin="https://chat.example").head
EFFECTS: dict[str, tuple[Any, Look, object]] = {
    # name: what it is set to, where one looks, what is there then
    "backend": (NOTHING_THERE, configured(lambda c: [each.url for each in c.servers()]), [NOTHING_THERE]),
    "backends": ((BackendConfig("a"),), configured(lambda c: [each.name for each in c.servers()]), ["a"]),
    "start": ("python -c pass", started, ["-c", "pass"]),
    "listen": ("127.0.0.1:4711", configured(lambda c: c.addresses()), [("127.0.0.1", 4711)]),
    "policy": ("fcfs", composed(lambda d: d.operation.policy), "fcfs"),
    "tau": (7.0, composed(lambda d: d.operation.tau_s), 7.0),
    "slots": (3, found(lambda server: server.slots), 3),
    "queue_capacity": (2, composed(admitted), 3),
    "refuse_truncated": (True, composed(answers_too_long), 400),
    "max_wait": (3.0, composed(lambda d: d.operation.patience_s(d.queued("0.5"))), 3.0),
    "keep_alive": ("7", composed(lambda d: d.serving.silent_s), 7.0),
    "max_answer_s": (7.0, composed(lambda d: d.serving.max_answer_s), 7.0),
    "slo": ("ttft-p95=5s", composed(second_is_refused), True),
    "predictor": ("missing", configured(predicts), "there is none"),
    "semantic": ("off", configured(lambda c: second_opinion(c) is None), True),
    "urgency": ("shipped", configured(lambda c: policy_of(c).name), "urgency"),
    "annotate": ("on", found(lambda server: server.annotate), "on"),
    "api_key_file": ("keys", granted(lambda access: [*access.clients.keys.values()]), ["ann"]),
    "clients": ("clients.toml", granted(lambda access: access.clients.rules_of("ann").max_waiting), 2),
    "admin_token_file": ("token", granted(lambda access: access.admin_token), b"an-admin-token"),
    "backend_key_file": ("key", found(lambda server: server.key), b"a-key-of-the-backend"),
    "allow_host": ("box.example", granted(lambda access: access.origins.is_ours("box.example")), True),
    "allow_origin": (
        "https://chat.example",
        granted(lambda access: access.origins.objection(PAGE, to_models=True)),
        None,
    ),
    "body_limit_mib": (1, composed(lambda d: d.admission.body_limit_bytes), 2**20),
    "client_timeout": (3.0, composed(lambda d: d.connections.client_timeout_s), 3.0),
    "drain_timeout": (3.0, composed(lambda d: d.drain_timeout_s), 3.0),
    "outage_grace": (3.0, composed(lambda d: d.pool.first.health.grace_s), 3.0),
    "max_connections": (7, composed(lambda d: d.connections.most), 7),
    "db": ("my.db", opened(lambda call: call.args[0]), Path("my.db")),
    "preempt": ("off", composed(lambda d: d.preemption.enabled), False),
    "stable_prefix": ("known", composed(lambda d: d.admission.stable_prefix is None), False),
    "prefix_rules": (
        PrefixRules(move="^Now: .*$"),
        configured(lambda c: c.prefix_rules.move),
        "^Now: .*$",
    ),
    "no_self_test": (True, self_tests, False),
    "freeze": (True, frozen, True),
    "history_days": (7, opened(lambda call: call.kwargs["bounds"].days), 7),
    "history_rows": (7, opened(lambda call: call.kwargs["bounds"].rows), 7),
    "record_prompts": (True, composed(lambda d: d.admission.factory.record_prompts), True),
    "show_prompts": (True, composed(lambda d: d.queued("0.5 words").asked.prompt), "0.5 words"),
    "log_level": ("debug", logged_at, "DEBUG"),
    "log_file": ("a.log", logged_to, True),
    "otlp_endpoint": (NOTHING_THERE, traced, True),
}


def test_there_is_a_row_for_each_setting() -> None:
    assert EFFECTS.keys() == {each.name for each in fields(ServeConfig)}


@pytest.mark.parametrize("name", EFFECTS)
def test_a_setting_has_its_effect(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file, text in FILES.items():
        Path(file).write_text(text)
        Path(file).chmod(0o600)
    value, look, there = EFFECTS[name]
    given: dict[str, Any] = {name: value}
    assert asyncio.run(look(ServeConfig())) != there
    assert asyncio.run(look(ServeConfig(**given))) == there
