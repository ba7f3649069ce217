"""What an operator does to the servers while the daemon runs: add one, drain it, bring it up, remove it."""

from dataclasses import dataclass
from typing import Any

from clairvoyant_cli.config import BackendConfig
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.proxy.servers.lifecycle import ServerLifecycle
from clairvoyant_cli.settings import read_table

DEEDS = ("add", "drain", "up", "remove")

MODEL_TIMEOUT_S = 600.0  # Ollama gives up loading one after five minutes
SECRETS = frozenset({"key"})  # arguments that are never shown


class RefusedError(Exception):
    """An action that is impossible now; the message says why."""

    status = 409


class InvalidError(RefusedError):
    """An action whose arguments could never do."""

    status = 422


@dataclass(frozen=True, slots=True)
class ServerActions:
    """Carries out `actions/backend`."""

    lifecycle: ServerLifecycle

    async def run(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Carry out `do` on the server `name`. `add` takes the keys of a `[[backends]]` table, with the `key`
        itself in place of `key_file`: no local file is read for a client.
        """
        deed = arguments.get("do")
        if deed not in DEEDS:
            raise InvalidError(f"do must be one of {', '.join(DEEDS)}")
        if deed == "add":
            return await self._add({key: value for key, value in arguments.items() if key != "do"})
        lifecycle, name = self.lifecycle, arguments.get("name")
        servers = {each.name: each for each in lifecycle.pool}
        if (server := servers.get(str(name))) is None:
            raise RefusedError(f"no backend is called {name}; there are {', '.join(servers)}")
        stay = [each for each in lifecycle.pool if each.health.withdrawn != "leaving" and each is not server]
        if deed == "up":
            lifecycle.bring_up(server)
        elif deed == "drain":
            lifecycle.withdraw(server, server.health.withdrawn or "draining")
        elif stay:
            lifecycle.withdraw(server, "leaving")
        else:
            raise RefusedError(f"{name} is the only one that stays; add another first")
        gone = lifecycle.pool.by_id.get(server.id) is None
        return {"done": "backend", "name": name, "standing": "gone" if gone else server.standing}

    async def keep_model(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Load or unload a model on all servers that can, or on the one named by `backend`."""
        deed, model, only = (arguments.get(name) for name in ("do", "name", "backend"))
        if deed not in ("load", "unload") or not isinstance(model, str) or not model:
            raise InvalidError("do must be load or unload, and name a model")
        able = [each for each in self.lifecycle.pool if each.adapter.SWAPS_MODELS]
        able = [each for each in able if only in (None, each.name)]
        if deed == "load":
            able = [each for each in able if each.has(model) is not False]
        else:
            able = [each for each in able if any(has.name == model for has in each.status.models)]
        if not able:
            raise RefusedError(f"no server here can {deed} {model} when asked")
        for server in able:
            path, body = server.adapter.keep_request(model, loaded=deed == "load")
            answer = await server.ask(path, MODEL_TIMEOUT_S, body)
            if answer.status != 200:
                raise RefusedError(f"{server.name} did not {deed} {model} (status {answer.status})")
            server.probe_due.set()
        return {"done": "model", "do": deed, "name": model, "backends": [server.name for server in able]}

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
            server = await self.lifecycle.add(
                BackendConfig(**read_table(BackendConfig, given, "backend")), key
            )
        except ClairvoyantError as error:
            refused = InvalidError if error.exit_code is ExitCode.USAGE else RefusedError
            raise refused(str(error)) from None
        return {"done": "backend", "name": server.name, "kind": server.adapter.name, "slots": server.room}
