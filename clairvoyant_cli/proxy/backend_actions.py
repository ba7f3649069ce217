"""What an operator does to the servers while the daemon runs: add one, drain it, bring it up, remove it."""

from dataclasses import dataclass
from typing import Any

from clairvoyant_cli.config import BackendConfig
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.proxy.joining import Joining
from clairvoyant_cli.proxy.pool import BackendPool
from clairvoyant_cli.settings import read_table

DEEDS = ("add", "drain", "up", "remove")

SECRETS = frozenset({"key"})
"""Arguments that are never shown."""


class RefusedError(Exception):
    """An action that cannot be carried out as things stand; the message says why."""

    status = 409


class InvalidError(RefusedError):
    """An action whose arguments could never do."""

    status = 422


@dataclass(frozen=True, slots=True)
class BackendActions:
    """Carries out `actions/backend`."""

    pool: BackendPool
    joining: Joining

    async def run(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Do what `do` says to the server that `name` says. To add one takes what a table `[[backends]]` has,
        with the `key` itself in place of `key_file`: no file of this machine is read for whoever asks.
        """
        deed = arguments.get("do")
        if deed not in DEEDS:
            raise InvalidError(f"do must be one of {', '.join(DEEDS)}")
        if deed == "add":
            return await self._add({key: value for key, value in arguments.items() if key != "do"})
        name = arguments.get("name")
        try:
            if deed == "drain":
                self.pool.drain(str(name))
            elif deed == "up":
                self.pool.bring_up(str(name))
            else:
                self.pool.remove(str(name))
        except KeyError:
            names = ", ".join(worker.name for worker in self.pool)
            raise RefusedError(f"no backend is called {name}; there are {names}") from None
        except ValueError:
            raise RefusedError(f"{name} is the only one that stays; add another first") from None
        here = next((worker for worker in self.pool if worker.name == name), None)
        return {"done": "backend", "name": name, "standing": "gone" if here is None else here.standing}

    async def _add(self, table: dict[str, Any]) -> dict[str, Any]:
        key = table.pop("key", None)
        if "key_file" in table:
            raise InvalidError("give the key itself, as key; no file is read for this")
        if not (key is None or (isinstance(key, str) and key and key.isprintable())):
            raise InvalidError("key must be a line of text")
        if "url" not in table:
            raise InvalidError('add needs the server\'s url, as {"do": "add", "url": "http://..."}')
        try:
            given = {name: value for name, value in table.items() if value is not None}
            worker = await self.joining.add(BackendConfig(**read_table(BackendConfig, given, "backend")), key)
        except ClairvoyantError as error:
            refused = InvalidError if error.exit_code is ExitCode.USAGE else RefusedError
            raise refused(str(error)) from None
        backend = worker.backend
        return {"done": "backend", "name": worker.name, "kind": backend.adapter.name, "slots": backend.room}
