"""LocalAI, 82c191a of 2026-08-22 (core/http/routes, backend/cpp/llama-cpp)."""

from clairvoyant_cli.backends.adapter import Found
from clairvoyant_cli.backends.imitates_ollama import ImitatesOllama
from clairvoyant_cli.backends.prober import Ask
from clairvoyant_cli.backends.process_inspection import listening, started_as
from clairvoyant_cli.config import MAX_SLOTS
from clairvoyant_cli.protocols import probes
from clairvoyant_cli.protocols.can_continue import Body
from clairvoyant_cli.protocols.request_bodies import short_name

DISCOVERY, PARALLEL = "/.well-known/localai.json", "LLAMACPP_PARALLEL"


class LocalAi(ImitatesOllama):
    """Runs a process for each model, loaded on demand. llama.cpp's give one answer at a time by default."""

    name = "localai"
    title = "LocalAI"
    usual_ports = (8080,)
    start_command = "local-ai run"
    get_model_command = "local-ai models install MODEL"
    LIMITS = (
        f"slots are seen only where {PARALLEL} is set for its process on this machine; else set --slots N"
    )
    PROCESS_NAMES = ("local-ai",)

    async def identify(self, ask: Ask, url: str, prefix: str) -> Found | None:
        return await self.found_by_version(ask, url, prefix)

    async def version(self, ask: Ask) -> str | None:
        page = probes.members_of((await ask(DISCOVERY)).body)
        return short_name(page["version"]) if {"version", "endpoint_groups"} <= page.keys() else None

    def local_slots(self, port: int) -> int | None:
        given = started_as(listening(self.PROCESS_NAMES, port)).variables.get(PARALLEL, "")
        is_number = given.isascii() and given.isdigit() and len(given) < 6
        return int(given) if is_number and 1 <= int(given) <= MAX_SLOTS else None

    def keep_request(self, model: str, *, loaded: bool) -> tuple[str, Body]:
        return f"/backend/{'load' if loaded else 'shutdown'}", {"model": model.removesuffix(":latest")}


KIND = LocalAi()
