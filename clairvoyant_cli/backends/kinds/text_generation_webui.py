"""text-generation-webui's API, 1dcde41 of 2026-05-03 (modules/api/script.py)."""

from typing import ClassVar

from clairvoyant_cli.backends.adapter import Adapter, Found
from clairvoyant_cli.backends.prober import Ask
from clairvoyant_cli.protocols import probes
from clairvoyant_cli.protocols.routes import Family

MODEL = "/v1/internal/model/info"


class TextGenerationWebui(Adapter):
    """Answers for the one model that is loaded, with the slots of its command line."""

    name = "text-generation-webui"
    title = "text-generation-webui"
    usual_ports = (5000,)
    start_command = "python server.py --api --model MODEL"
    get_model_command = start_command
    LIMITS = "it gives one answer at a time unless started with --parallel N, or where its web page is used"
    SPEAKS = frozenset((Family.OPENAI, Family.ANTHROPIC))
    ANSWERS_ANY_MODEL = True
    KNOWN_BY_PORT = False
    PROCESS_NAMES: ClassVar[tuple[str, ...]] = ("python", "Python")
    SLOTS_FLAGS = ("--parallel",)

    async def identify(self, ask: Ask, url: str, prefix: str) -> Found | None:
        answer = probes.members_of((await ask(MODEL)).body)
        return Found(self, url, prefix) if {"model_name", "lora_names", "loader"} <= answer.keys() else None


KIND = TextGenerationWebui()
