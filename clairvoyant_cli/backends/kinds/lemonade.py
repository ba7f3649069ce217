"""Lemonade, 11.7.0 (src/cpp/server/server.cpp, ollama_api.cpp)."""

from clairvoyant_cli.backends.adapter import Status
from clairvoyant_cli.backends.imitates_ollama import ImitatesOllama, under
from clairvoyant_cli.backends.prober import Ask
from clairvoyant_cli.protocols import probes
from clairvoyant_cli.protocols.can_continue import Body
from clairvoyant_cli.protocols.probes import ProbeAnswer
from clairvoyant_cli.protocols.request_bodies import short_name

HEALTH = "/api/v1/health"
ROUTES = {**under("/api"), **{path.replace("/v1/", "/v0/"): route for path, route in under("/api").items()}}


class Lemonade(ImitatesOllama):
    """Runs a server for each model, llama.cpp's or one for an NPU, and loads it on demand."""

    name = "lemonade"
    title = "Lemonade"
    usual_ports = (13305,)
    start_command = "lemonade-server serve"
    get_model_command = "lemonade-server pull MODEL"
    LIMITS = "it reports slots only while one llama.cpp model is loaded; else set --slots N"
    routes = ROUTES
    TELLS_SLOTS = True
    health_path = HEALTH

    async def version(self, ask: Ask) -> str | None:
        """Return it from its health, which lists what is loaded."""
        health = probes.members_of((await ask(HEALTH)).body)
        return short_name(health["version"]) if "all_models_loaded" in health else None

    async def inspect(
        self, ask: Ask, status: Status, health: ProbeAnswer, local_port: int | None, *, was_up: bool
    ) -> None:
        await super().inspect(ask, status, health, local_port, was_up=was_up)
        if len(status.models) == 1:
            status.slots = probes.count_slots((await ask("/api/v1/slots")).body) or status.slots

    def keep_request(self, model: str, *, loaded: bool) -> tuple[str, Body]:
        return f"/api/v1/{'load' if loaded else 'unload'}", {"model_name": model}


KIND = Lemonade()
