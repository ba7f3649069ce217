"""`clairvoyant batch`: runs a file of requests in OpenAI's batch format in idle time."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import click
import httpx
import msgspec
from rich.progress import MofNCompleteColumn, TextColumn, TimeRemainingColumn

from clairvoyant_cli.backends.chat_probe import client_for
from clairvoyant_cli.commands.console import PlainConsole
from clairvoyant_cli.commands.env import key_option
from clairvoyant_cli.commands.options import FILE, url_option
from clairvoyant_cli.errors import ClairvoyantError, InputError
from clairvoyant_cli.files import LARGE_BYTES, opened
from clairvoyant_cli.protocols.chores import CHORE_HEADER
from clairvoyant_cli.protocols.printable import plural
from clairvoyant_cli.state.client import ControlClient, admin_token, daemon_url
from clairvoyant_cli.system import cancel_when_ended, lock_now

URLS = ("/v1/chat/completions", "/v1/embeddings")
RETRIED = (408, 429, 502, 503, 504)  # rejected, or no server is up
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 60.0
USUAL_AT_ONCE = 2  # where the daemon does not tell its slots


class Line(msgspec.Struct):
    """A line of a batch file; fields that it may have besides are ignored."""

    custom_id: str
    method: str
    url: str
    body: dict[str, Any]


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
    NAME.errors.jsonl. After a stop, the same command goes on: what has a result is not asked again.
    Other requests go first.
    """
    lines = read_batch(file)
    with results_of(file) as (results, done, errors):
        batch = Batch(deque(line for line in lines if line.custom_id not in done), results, errors)
        columns = MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[left]}")
        with PlainConsole(stderr=True).progress(*columns) as show:
            batch.show = lambda why="": show(file.name, len(lines) - len(batch.left), len(lines), why)
            try:
                if batch.waiting:
                    asyncio.run(batch.run(daemon_url(url), key, at_once))
            except (KeyboardInterrupt, asyncio.CancelledError):
                left = plural(len(batch.left), "request")
                raise ClairvoyantError(f"stopped, {left} left; run it again to go on") from None
        told = f"{plural(len(lines), 'request')}: {len(lines) - batch.failed} results in {results.name}"
    if batch.failed:
        raise ClairvoyantError(f"{told}, {plural(batch.failed, 'error')} in {errors.name}")
    click.echo(told, err=True)


def read_batch(path: Path) -> list[Line]:
    """Return the requests of a batch file; InputError names the line that is none."""
    lines, seen = list[Line](), dict[str, int]()
    with opened(path, "the batch file", LARGE_BYTES) as file:
        for number, text in enumerate(file, 1):
            where = f"{path}, line {number}"
            if not text.strip():
                continue
            try:
                line = msgspec.json.decode(text, type=Line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise InputError(f"{where} is no request of a batch: {error}") from None
            if line.method != "POST" or line.url not in URLS:
                raise InputError(f"{where} asks for {line.method} {line.url}; give POST {' or '.join(URLS)}")
            if line.body.get("stream"):
                raise InputError(f"{where} asks for a stream, which a batch cannot keep; remove it")
            if (twin := seen.setdefault(line.custom_id, number)) != number:
                raise InputError(f"{where} has the same custom_id as line {twin}; give each its own")
            lines.append(line)
    return lines


@contextmanager
def results_of(path: Path) -> Iterator[tuple[BinaryIO, set[str], BinaryIO]]:
    """Open the files of results and errors beside a batch file, for this process alone; yield both and the
    ids that have a result. A last line that a crash has cut off is removed, and so are all errors.
    """
    kept, wrong = path.with_suffix(".results.jsonl"), path.with_suffix(".errors.jsonl")
    try:
        with kept.open("a+b") as results, wrong.open("a+b") as errors:
            if not lock_now(results.fileno()):
                raise InputError(f"another command runs {path}; wait for its end")
            results.seek(0)
            done, whole = set[str](), 0
            for text in results:
                if text.endswith(b"\n"):
                    whole += len(text)
                    done.add(str(msgspec.json.decode(text, type=dict[str, Any]).get("custom_id")))
            results.truncate(whole)
            errors.truncate(0)
            yield results, done, errors
    except msgspec.DecodeError:
        raise InputError(f"{kept} is not of a batch; move it away") from None
    except OSError as error:
        raise InputError(f"cannot write {error.filename or kept}: {error.strerror or error}") from None


@dataclass(slots=True)
class Batch:
    """Requests that are left, and where their results and errors go."""

    waiting: deque[Line]
    results: BinaryIO
    errors: BinaryIO
    failed: int = 0
    show: Callable[..., None] = print
    left: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.left = {line.custom_id for line in self.waiting}

    async def run(self, url: str, key: str, at_once: int | None) -> None:
        cancel_when_ended()
        count = at_once or await _slots(url) + 1
        self.show()
        try:
            async with client_for(url, key) as client, asyncio.TaskGroup() as group:
                for _ in range(min(count, len(self.waiting))):
                    group.create_task(self._work(client))
        except ExceptionGroup as failed:  # such as a full disk
            raise failed.exceptions[0] from None

    async def _work(self, client: httpx.AsyncClient) -> None:
        while self.waiting:
            line = self.waiting.popleft()
            response = await self._answer(client, line)
            try:
                body = msgspec.json.decode(response.content)
            except msgspec.DecodeError:
                body = {"error": {"message": response.text[:1000]}}
            good = response.is_success and "error" not in body
            self._keep(line, response, body, self.results if good else self.errors)
            self.failed += not good
            self.show()

    async def _answer(self, client: httpx.AsyncClient, line: Line) -> httpx.Response:
        """Ask until there is an answer that repeating would not change."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                response = await client.post(line.url, json=line.body, headers={CHORE_HEADER: b"batch"})
                if response.status_code not in RETRIED:
                    return response
                why = f"waiting: HTTP {response.status_code}"
                after = response.headers.get("retry-after", "")
            except httpx.TransportError as error:
                why, after = f"waiting: {error or type(error).__name__}", ""
            self.show(why)
            await asyncio.sleep(min(float(after), LONGEST_PAUSE_S) if after.isdecimal() else pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _keep(self, line: Line, response: httpx.Response, body: object, file: BinaryIO) -> None:
        number = response.headers.get("x-clairvoyant-request-id", "")
        answer = {"status_code": response.status_code, "request_id": number, "body": body}
        kept = {"id": f"batch_req_{number}", "custom_id": line.custom_id, "response": answer, "error": None}
        file.write(msgspec.json.encode(kept) + b"\n")
        file.flush()
        self.left.discard(line.custom_id)


async def _slots(url: str) -> int:
    """Return the slots of a daemon; ClairvoyantError if none answers."""
    async with ControlClient(url, admin_token(None)) as control:
        await control.mode()
        try:
            return sum(each.slots for each in (await control.snapshot()).backends) or 1
        except ClairvoyantError:  # the token is the operator's
            return USUAL_AT_ONCE - 1
