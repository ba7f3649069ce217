"""`clairvoyant batch`: runs a file of requests in OpenAI's batch format in idle time."""

import asyncio
import json
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import click
import httpx
from rich.progress import MofNCompleteColumn, TextColumn, TimeRemainingColumn

from clairvoyant_cli.backends.chat_probe import client_for, error_text
from clairvoyant_cli.commands.batch_files import ROUTES, Line, add_line, encoded, read_batch, results_of
from clairvoyant_cli.commands.console import PlainConsole
from clairvoyant_cli.commands.env import key_option
from clairvoyant_cli.commands.options import FILE, url_option
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.protocols.chores import CHORE_HEADER
from clairvoyant_cli.protocols.printable import plural
from clairvoyant_cli.state.client import ControlClient, admin_token, daemon_url
from clairvoyant_cli.system import cancel_when_ended

HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity", CHORE_HEADER.decode(): "batch"}
NOT_ACCEPTED = (429, 503)  # the queue is full, or no server is up
BROKEN_OFF = (408, 502, 504)
MAX_TRIES = 3  # of a request whose answer breaks off: it may be the cause
FIRST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_ASKED_S = 5.0, 60.0, 600.0


class Reply(NamedTuple):
    """What came of a request; an "error" is final until the command is run again."""

    kind: Literal["result", "error", "broken off", "not accepted"]
    why: str = ""  # it is no result
    response: dict[str, Any] | None = None  # as in OpenAI's format
    asked_s: float = 0.0  # the pause that the server asks for


@click.command()
@click.argument("file", type=FILE)
@click.option(
    "-n",
    "--at-once",
    type=click.IntRange(min=1),
    metavar="N",
    help="Requests in flight.  [default: the slots of all servers, and one that waits]",
)
@url_option
@key_option
def command(file: Path, at_once: int | None, url: str | None, key: str) -> None:
    """Run a batch file in idle time: requests to /v1/chat/completions and /v1/embeddings.

    FILE is in OpenAI's batch format. Results are added to NAME.results.jsonl beside it, errors to
    NAME.errors.jsonl. After a stop or errors, the same command goes on: what has a result is not asked
    again, unless it has changed. Other requests go first.
    """
    lines = read_batch(file)
    with results_of(file, lines) as (done, results, errors):
        batch = Batch(deque(line for line in lines if line.custom_id not in done), file.name, results, errors)
        columns = MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[left]}")
        with PlainConsole(stderr=True).progress(*columns) as show:
            batch.show = lambda why="": show(file.name, len(lines) - batch.left, len(lines), why)
            try:
                if batch.waiting:
                    asyncio.run(batch.run(daemon_url(url), key, at_once))
            except (KeyboardInterrupt, asyncio.CancelledError):
                told = f"stopped, {plural(batch.left, 'request')} left; run the same command again to go on"
                raise ClairvoyantError(told) from None
        told = f"{plural(len(lines), 'request')}: {len(lines) - batch.failed} results in {results.name}"
    if batch.failed:
        told = f"{told}, {plural(batch.failed, 'error')} in {errors.name}"
        raise ClairvoyantError(f"{told}; run the same command again to retry")
    click.echo(told, err=True)


@dataclass(slots=True)
class Batch:
    """Requests that are left, and where their results and errors go."""

    waiting: deque[Line]
    name: str  # of the batch file
    results: BinaryIO
    errors: BinaryIO
    failed: int = 0
    show: Callable[..., None] = print
    left: int = field(init=False)
    suspects: deque[Line] = field(default_factory=deque)  # their answers broke off
    tries: Counter[str] = field(default_factory=Counter)  # that broke off, by custom_id
    gate: asyncio.Lock = field(default_factory=asyncio.Lock)
    pause_s: float = 0.0  # before the next request; 0 unless the last was not accepted or broke off

    def __post_init__(self) -> None:
        self.left = len(self.waiting)

    async def run(self, url: str, key: str, at_once: int | None) -> None:
        cancel_when_ended()
        count = at_once or await _slots(url) + 1
        self.show()
        try:
            async with client_for(url, key) as client:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(count, len(self.waiting))):
                        group.create_task(self._work(client, self.waiting))
                await self._work(client, self.suspects)  # alone, so that none is blamed for another
        except ExceptionGroup as failed:  # such as a full disk
            raise failed.exceptions[0] from None

    async def _work(self, client: httpx.AsyncClient, lines: deque[Line]) -> None:
        while lines:
            line = lines.popleft()
            reply = await self._reply(client, line)
            self.tries[line.custom_id] += reply.kind == "broken off"
            if reply.kind == "not accepted":
                lines.append(line)
            elif reply.kind == "broken off" and self.tries[line.custom_id] < MAX_TRIES:
                self.suspects.appendleft(line)  # its last try follows, rather than all others' pauses
            else:
                self._keep(line, reply)

    async def _reply(self, client: httpx.AsyncClient, line: Line) -> Reply:
        if self.pause_s:
            async with self.gate:
                wait_s = self.pause_s
                while wait_s:  # one request is sent in place of all, once a server is up
                    await asyncio.sleep(wait_s)
                    if await _is_up(str(client.base_url)):
                        return await self._ask(client, line)
                    wait_s = FIRST_PAUSE_S
        return await self._ask(client, line)

    async def _ask(self, client: httpx.AsyncClient, line: Line) -> Reply:
        before_s, reply = self.pause_s, await ask(client, line)
        failed = reply.kind in ("broken off", "not accepted")
        if failed:
            self.show(f"waiting: {reply.why}")
        if self.pause_s == before_s:  # else it was sent before the last pause began
            longer_s = max(FIRST_PAUSE_S, min(2 * before_s, LONGEST_PAUSE_S), reply.asked_s)
            self.pause_s = longer_s if failed else 0.0
        return reply

    def _keep(self, line: Line, reply: Reply) -> None:
        error = None
        if reply.kind == "broken off":
            error = {"code": "broken_off", "message": f"given up after {MAX_TRIES} tries: {reply.why}"}
        number = (reply.response or {}).get("request_id", "")
        record: dict[str, Any] = {"id": f"batch_req_{number}", "custom_id": line.custom_id}
        record |= {"response": reply.response, "error": error}
        record |= {"batch_file": self.name, "request_sha256": line.digest}  # not of OpenAI's format
        add_line(self.results if reply.kind == "result" else self.errors, record)
        self.left -= 1
        self.failed += reply.kind != "result"
        self.show()


async def ask(client: httpx.AsyncClient, line: Line) -> Reply:
    """Send a request once."""
    try:
        response = await client.post(line.url, content=encoded(line.body), headers=HEADERS)
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        return Reply("not accepted", f"no connection to the daemon: {error}")
    except httpx.DecodingError as error:
        return Reply("error", str(error))
    except httpx.RequestError as error:
        return Reply("broken off", str(error) or type(error).__name__)
    status, told = response.status_code, response.headers
    try:
        body = json.loads(response.content)
        encoded([[body]])  # as deep as it will be in the file of results
    except (ValueError, RecursionError):
        body = {"error": {"message": response.text[:1000]}}
    answer = {"status_code": status, "request_id": told.get("x-clairvoyant-request-id", ""), "body": body}
    fields = body if isinstance(body, dict) else {}
    failed, items = fields.get("error"), fields.get(ROUTES[line.url])
    if response.is_success and not failed and items and isinstance(items, list):
        return Reply("result", "", answer)
    why = f"HTTP {status}, {error_text(fields)[:500] if failed else 'not an answer of this API'}"
    if status in NOT_ACCEPTED:
        asked = told.get("retry-after", "")
        return Reply(
            "not accepted", why, answer, min(float(asked), LONGEST_ASKED_S) if asked.isdecimal() else 0.0
        )
    return Reply("broken off" if status in BROKEN_OFF else "error", why, answer)


async def _is_up(url: str) -> bool:
    try:
        async with ControlClient(url, admin_token(None)) as control:
            return await control.is_up()
    except ClairvoyantError:
        return False


async def _slots(url: str) -> int:
    """Return the slots of a daemon; ClairvoyantError if none answers."""
    async with ControlClient(url, admin_token(None)) as control:
        await control.mode()
        try:
            return sum(each.slots for each in (await control.snapshot()).backends) or 1
        except ClairvoyantError:  # the token is the operator's
            return 1
