"""KoboldCpp, 1.76 and 1.102 (koboldcpp.py)."""

from clairvoyant_cli.backends.adapter import Adapter, Found, Turn
from clairvoyant_cli.backends.prober import Ask
from clairvoyant_cli.protocols import probes
from clairvoyant_cli.protocols.lenient_json import is_given, text
from clairvoyant_cli.protocols.probes import BusySlots
from clairvoyant_cli.protocols.request_bodies import short_name
from clairvoyant_cli.protocols.routes import ROUTES, Family, Route, Shape, Work

VERSION, QUEUE = "/api/extra/version", "/api/extra/perf"
OWN_GENERATE = ("/api/v1/generate", "/api/latest/generate", "/api/extra/generate/stream")


class KoboldCpp(Adapter):
    """Gives one answer at a time, queues six more, and refuses the rest. It imitates Ollama and llama.cpp."""

    name = "koboldcpp"
    title = "KoboldCpp"
    usual_ports = (5001,)
    start_command = "koboldcpp --model model.gguf"
    get_model_command = start_command
    LIMITS = "an unstreamed answer goes on when its client has left, and keeps the slot until it ends"
    SPEAKS = frozenset((Family.OPENAI, Family.OLLAMA))
    TURN = Turn.IMITATOR
    CONTINUES = ()  # a proof on OpenAI's API says nothing of its other ones
    TELLS_SLOTS = True
    REPORTS_SLOTS = True
    # Its own route to stop an answer stops whichever runs, unless the request brought a key of its own.
    RUNS_ON_S = 600.0
    ANSWERS_ANY_MODEL = True
    KNOWN_BY_PORT = False
    routes = ROUTES | {
        path: Route(Family.OPENAI, Work.OPAQUE, Shape.OPAQUE, name=path) for path in OWN_GENERATE
    }
    health_path = VERSION

    async def identify(self, ask: Ask, url: str, prefix: str) -> Found | None:
        found = await super().identify(ask, url, prefix)
        return None if found is None else Found(self, url, prefix, found.version, slots=1)

    async def version(self, ask: Ask) -> str | None:
        answer = probes.members_of((await ask(VERSION)).body)
        return short_name(answer["version"]) if text(answer["result"]) == self.title else None

    async def busy_slots(self, ask: Ask) -> BusySlots | None:
        answer = probes.members_of((await ask(QUEUE)).body)
        if "idle" not in answer:
            return None
        return frozenset() if is_given(answer["idle"]) else frozenset({(0, None)})


KIND = KoboldCpp()
