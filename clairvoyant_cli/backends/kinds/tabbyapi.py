"""TabbyAPI, e632af4 of 2026-08-13 (endpoints/core/router.py)."""

from clairvoyant_cli.backends.adapter import Adapter, Found, Status, Turn
from clairvoyant_cli.backends.prober import Ask
from clairvoyant_cli.protocols import probes
from clairvoyant_cli.protocols.lenient_json import object_in, text
from clairvoyant_cli.protocols.probes import ProbeAnswer
from clairvoyant_cli.protocols.routes import Family

SERVICE = "/.well-known/serviceinfo"


class TabbyApi(Adapter):
    """Batches requests, and reports its batch like llama.cpp its slots. It answers for its one model, whose
    exact name a request needs only to load another (`inline_model_loading`, with the admin key).
    """

    name = "tabbyapi"
    title = "TabbyAPI"
    usual_ports = (5000,)
    start_command = "python start.py    # in its folder, with model_name in config.yml"
    get_model_command = "model_name in config.yml"
    LIMITS = "it reports slots and model only to those with its API key: --backend-key-file FILE"
    SPEAKS = frozenset((Family.OPENAI,))
    TELLS_SLOTS = True
    TURN = Turn.IMITATOR
    KNOWN_BY_PORT = False

    async def identify(self, ask: Ask, url: str, prefix: str) -> Found | None:
        if not await self.is_still(ask):
            return None
        props = probes.props_of((await ask("/props")).body)
        return Found(self, url, prefix, slots=None if props is None else props.slots)

    async def is_still(self, ask: Ask) -> bool:
        service = probes.members_of((await ask(SERVICE)).body)
        return text(object_in(service["software"])["name"]) == self.title

    async def inspect(
        self, ask: Ask, status: Status, health: ProbeAnswer, local_port: int | None, *, was_up: bool
    ) -> None:
        await super().inspect(ask, status, health, local_port, was_up=was_up)
        props = probes.props_of((await ask("/props")).body)  # 400 or so while no model is loaded
        if props is not None and props.slots:
            status.slots = props.slots


KIND = TabbyApi()
