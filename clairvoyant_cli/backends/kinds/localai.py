"""LocalAI, 82c191a of 2026-08-22 (core/http/routes, backend/cpp/llama-cpp)."""

from contextlib import suppress

import psutil

from clairvoyant_cli.backends.adapter import slots_in
from clairvoyant_cli.backends.imitates_ollama import ImitatesOllama
from clairvoyant_cli.backends.prober import Ask
from clairvoyant_cli.backends.process_inspection import listening
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

    async def version(self, ask: Ask) -> str | None:
        page = probes.members_of((await ask(DISCOVERY)).body)
        return short_name(page["version"]) if {"version", "endpoint_groups"} <= page.keys() else None

    def local_slots(self, port: int) -> int | None:
        for process in listening(self.PROCESS_NAMES, port):
            with suppress(psutil.Error, OSError):  # of another account
                return slots_in(process.environ().get(PARALLEL, ""))
        return None

    def keep_request(self, model: str, *, loaded: bool) -> tuple[str, Body]:
        return f"/backend/{'load' if loaded else 'shutdown'}", {"model": model.removesuffix(":latest")}


KIND = LocalAi()
