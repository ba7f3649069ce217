"""Saves what a slot of llama.cpp holds to a file and restores it, instead of having it read again.

llama.cpp does this with `--slot-save-path DIR` (`POST /slots/{id}?action=save|restore`). A file contains the
tokens of a conversation.

Rule 1: a file is created here, empty and for the owner alone, before the server writes to it. Only files
created here are erased: `clairvoyant-PID-RUN-NUMBER.bin`.
Rule 2: nothing here raises, or takes longer than `TIMEOUT_S` per question: without a file the server reads
the conversation again, as it would anyway.
"""

import asyncio
import logging
import os
import re
import secrets
import shutil
import stat
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from clairvoyant_cli.backends.adapter import ObservedServer
from clairvoyant_cli.backends.prober import Ask
from clairvoyant_cli.backends.speeds import Speeds
from clairvoyant_cli.protocols import probes
from clairvoyant_cli.system import create_for_owner, is_alive, remove

TIMEOUT_S = 3.0
UNUSED_S = 1800.0  # after which a file is erased: its session has ended
REST_S = 60.0  # nothing is saved or restored for this long after a failure
MAX_FAILURES = 3  # without a success between them; then nothing is for good

RUN = secrets.token_hex(4)
FILE_NAME = re.compile(r"clairvoyant-(\d{1,10})-([0-9a-f]{8})-\d+\.bin")
NUMBERS = count(1)

ASSUMED_BYTES_A_TOKEN = 131_072.0  # 8 billion weights: 32 layers of 8 heads of 128 numbers, twice, 16 bits
ASSUMED_BYTES_PER_S = 5e8
LEAST_BYTES = 1 << 20  # of a file that shows the speed; a smaller one takes as long as a question
SPARE_BYTES = 1 << 30  # left free on the disk
MIN_GAIN = 2.0
"""Reading must take this many times as long as saving and restoring: the conversation may not go on."""

SAME_SHARE = 0.9  # a slot with fewer tokens than this of what was expected holds something else
CACHED_SHARE = 0.5  # the next turn of a restored conversation has at least this share of it in the cache


@dataclass(frozen=True, slots=True)
class SlotFile:
    """A saved conversation, last used at `used_s`."""

    path: Path
    tokens: int
    size: int
    used_s: float


class SavedSlots:
    """The saved conversations of one server, by key, the least recently used first.

    `folder` is where the server saves slots; `say` logs a line. `files` has what is saved. `held` is for who
    decides what is saved: the conversations that the slots hold, with their tokens (None if unknown), oldest
    first. `lock` is held while slots are saved and restored for a request.
    """

    def __init__(
        self,
        server: ObservedServer,
        ask: Ask,
        folder: Path,
        budget_bytes: float,
        say: Callable[[int, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.held: OrderedDict[str, int | None] = OrderedDict()
        self.lock = asyncio.Lock()
        self.bytes_a_token = ASSUMED_BYTES_A_TOKEN
        self.bytes_per_s = {"save": ASSUMED_BYTES_PER_S, "restore": ASSUMED_BYTES_PER_S}
        self._server = server
        self._ask = ask
        self._folder = folder
        self._budget_bytes = budget_bytes
        self._say = say
        self._clock = clock
        self._works: bool | None = None
        self._rests_until_s = 0.0
        self._failures = 0
        self.files: OrderedDict[str, SlotFile] = OrderedDict()
        self._created: set[Path] = set()
        _erase_stale(folder)

    @property
    def usable(self) -> bool:
        """Whether slots can be saved and restored now, as far as is known."""
        return self._works is True and self._clock() >= self._rests_until_s

    async def probe(self) -> bool:
        """Find out whether slots can be saved and restored; return `usable`. What the slots hold is not
        touched: whether a save arrives and whether a restore has any effect is seen at the first of each.
        """
        if self._works is not None or self._clock() < self._rests_until_s:
            return self.usable
        if self._server.local_port is None:
            self._refuse("it runs on another machine")
        elif not self._folder.is_dir() or not os.access(self._folder, os.W_OK | os.X_OK):
            self._refuse(f"{self._folder} is not a folder that this account can write to")
        elif await self.idle_slots() is not None:
            self._works = True
        elif self._clock() >= self._rests_until_s:
            self._refuse("it does not list its slots")
        return self.usable

    async def idle_slots(self) -> dict[int, int] | None:
        """Return the tokens in each slot that is idle, by its id; None if the server does not tell."""
        answer = await self._ask("/slots", TIMEOUT_S)
        if answer.status in (0, 503):  # it is down, loads its model, or reads a long prompt for another slot
            self._rests_until_s = self._clock() + REST_S
        return probes.idle_slots(answer.body)

    def tokens_of(self, key: str) -> int:
        """Return the tokens in a conversation's file; 0 if there is none."""
        file = self.files.get(key)
        return 0 if file is None else file.tokens

    def worth(self, tokens_read_again: float, tokens_saved: float, speeds: Speeds) -> bool:
        """Whether to save and restore a context of `tokens_saved`, of which the server would otherwise read
        `tokens_read_again`.
        """
        size = tokens_saved * self.bytes_a_token
        save_s, restore_s = (size / each for each in self.bytes_per_s.values())
        if max(save_s, restore_s) > TIMEOUT_S:
            return False
        return speeds.seconds(tokens_read_again, 0.0) > MIN_GAIN * (save_s + restore_s)

    async def keep(self, key: str, slot: int, tokens: float) -> bool:
        """Save an idle slot that should hold `tokens` of a conversation; return whether it is saved."""
        if not self.usable:
            return False
        self._sweep()
        if 0 < tokens == self.tokens_of(key):
            self._use(key)
            return True
        self.forget(key)
        path = self._create(tokens * self.bytes_a_token)
        answer = None if path is None else await self._act("save", slot, path)
        if path is None or answer is None:
            return False
        saved, size = answer
        if _regular_size(path) != size:
            # What it wrote elsewhere cannot be erased from here, but overwritten with an empty slot.
            await self._act("erase", slot, path)
            await self._act("save", slot, path)
            self._refuse(f"it does not save slots in {self._folder}")
        elif saved and saved >= SAME_SHARE * tokens:
            self.bytes_a_token = size / saved
            self.files[key] = SlotFile(path, saved, size, self._clock())
            self._make_room(0.0)
        self._sweep()
        return key in self.files

    async def bring_back(self, key: str, slot: int) -> bool:
        """Restore a conversation into an idle slot; return whether that was done."""
        file = self.files.get(key)
        if file is None or not self.usable:
            return False
        if _regular_size(file.path) != file.size:
            self.forget(key)
            return False
        answer = await self._act("restore", slot, file.path)
        if answer is None or answer[0] != file.tokens:
            # Another model may be loaded now, for which no file is of use.
            self.forget_all()
            if answer is not None:
                self._failed("a slot was not restored")
            return False
        self._use(key)
        return True

    def _use(self, key: str) -> None:
        self.files[key] = replace(self.files[key], used_s=self._clock())
        self.files.move_to_end(key)

    def forget_unused(self) -> None:
        """Erase the files of sessions that have ended."""
        while self.files and self._clock() - next(iter(self.files.values())).used_s > UNUSED_S:
            self.forget(next(iter(self.files)))

    def told(self, key: str, cached_tokens: float) -> None:
        """Note how much of a restored conversation its next turn found in the cache."""
        if cached_tokens >= CACHED_SHARE * self.tokens_of(key):
            self._failures = 0
        else:
            self._failed("a restored conversation was read again")

    def forget(self, key: str) -> None:
        if self.files.pop(key, None) is not None:
            self._sweep()

    def forget_all(self) -> None:
        self.files.clear()
        self._sweep()

    def _create(self, size: float) -> Path | None:
        """Create a file of `size` bytes for a slot; return its path, or None if there is no room."""
        path = self._folder / f"clairvoyant-{os.getpid()}-{RUN}-{next(NUMBERS)}.bin"
        try:
            if size > self._budget_bytes or shutil.disk_usage(self._folder).free < size + SPARE_BYTES:
                return None
            self._make_room(size)
            os.close(create_for_owner(path))
        except OSError as error:
            self._failed(f"no file can be created in {self._folder}: {error.strerror}")
            return None
        self._created.add(path)
        return path

    def _make_room(self, size: float) -> None:
        """Erase the least recently used files until one of `size` bytes fits into the budget."""
        while self.files and sum(each.size for each in self.files.values()) + size > self._budget_bytes:
            self.forget(next(iter(self.files)))

    async def _act(self, action: str, slot: int, path: Path) -> tuple[int, int] | None:
        """Save or restore a slot; return the tokens and bytes, None if it failed."""
        begun_s = self._clock()
        answer = await self._ask(f"/slots/{slot}?action={action}", TIMEOUT_S, {"filename": path.name})
        if answer.status == 501:
            self._refuse("it was not started with --slot-save-path")
        elif answer.status != 200:
            self._failed(answer.why or f"it answered {answer.status} to {action} a slot")
        else:
            tokens, size = probes.slot_file(answer.body)
            if size >= LEAST_BYTES and action in self.bytes_per_s:
                speed = size / max(self._clock() - begun_s, 1e-3)
                self.bytes_per_s[action] += (speed - self.bytes_per_s[action]) / 2.0
            return tokens, size
        return None

    def _failed(self, why: str) -> None:
        self._failures += 1
        self._rests_until_s = self._clock() + REST_S
        if self._failures >= MAX_FAILURES:
            self._refuse(why)

    def _refuse(self, why: str) -> None:
        """Save nothing from now on."""
        if self._works is not False:
            self._works = False
            self._say(logging.INFO, f"{self._server.name}: conversations are not saved: {why}")
        self.forget_all()

    def _sweep(self) -> None:
        """Erase what was created and is of no use, such as a file that the server wrote too late."""
        for path in self._created - {each.path for each in self.files.values()}:
            with suppress(OSError):
                remove(path)
                self._created.discard(path)


def _regular_size(path: Path) -> int:
    """Return a file's size; -1 if it is none, or a link."""
    try:
        found = path.lstat()
    except OSError:
        return -1
    return found.st_size if stat.S_ISREG(found.st_mode) else -1


def _erase_stale(folder: Path) -> None:
    """Erase files of runs that ended without erasing them. A process id may be used again, a run is not."""
    with suppress(OSError):
        for path in list(folder.iterdir()):
            named = FILE_NAME.fullmatch(path.name)
            if named is None or named[2] == RUN or _regular_size(path) < 0:
                continue
            if int(named[1]) == os.getpid() or not is_alive(int(named[1])):
                remove(path)
