"""One LLM server behind the proxy: what it is, how it is, what it has loaded, and what was learned of it."""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from clairvoyant_cli.addresses import is_loopback, same_host
from clairvoyant_cli.backends.adapter import Adapter, Status
from clairvoyant_cli.backends.continuation import Way
from clairvoyant_cli.backends.priority import MAX_IN_FLIGHT, Priority
from clairvoyant_cli.backends.prober import Ask, Prober
from clairvoyant_cli.backends.speeds import PromptPreemptions, Speeds
from clairvoyant_cli.config import BackendConfig
from clairvoyant_cli.http.upstream import Upstream
from clairvoyant_cli.protocols.model_settings import ModelSettings, changed_parts
from clairvoyant_cli.protocols.probes import OfferedModel
from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.proxy.servers.health import Health
from clairvoyant_cli.proxy.servers.loaded_models import LoadedModels
from clairvoyant_cli.proxy.servers.silence import Silences
from profiles.records import Continuation, Profile

_URL = re.compile(
    rb"(?P<scheme>https?)://(?P<host>\[[0-9a-f:.]+\]|[^/?#@:]+)(?::(?P<port>[0-9]{1,5}))?(?P<path>[/?#].*)?",
    re.IGNORECASE,
)


def is_under(prefix: bytes, target: bytes) -> bool:
    """Whether a path is the prefix itself or below it."""
    return target.startswith(prefix) and target[len(prefix) : len(prefix) + 1] in (b"", b"/", b"?", b"#")


class VerifiedContinuation(NamedTuple):
    """A way to continue a preempted answer, the proof that it is exact, and the settings it holds for."""

    way: Way
    proof: Continuation
    settings: ModelSettings


@dataclass(slots=True, eq=False, repr=False)
class Server:
    """One server behind the proxy, and all that is known of it: how the operator configured it (`config`),
    what its kind can do (`adapter`), what it said of itself at the last look (`status`), how far it is
    trusted (`health`), and what was learned or measured of it since.
    """

    name: str  # a label
    adapter: Adapter
    upstream: Upstream
    prober: Prober
    prefix: str = ""  # of its API
    config: BackendConfig = field(default_factory=BackendConfig)  # as the operator gave it
    key: bytes | None = None  # its own API key
    annotate: str = "off"  # its requests carry a priority: on, off, or auto (if it is known to order by it)
    guessed: bool = False  # nothing has answered yet: the adapter is only the likeliest
    confirmed: bool = False  # it has answered as this kind does, so that other answers are another's
    leads_back: bool = False  # its address leads back to this proxy

    status: Status = field(default_factory=Status)  # what it says of itself
    health: Health = field(default_factory=Health)  # how far it is trusted
    loaded: LoadedModels | None = None  # what it has loaded; None unless it swaps models

    # What was learned or measured of it.
    speeds: Speeds = field(default_factory=Speeds)
    silences: Silences = field(default_factory=Silences)
    profiles: Sequence[Profile] = ()  # its measurements, the preferred one first
    settings: dict[str, ModelSettings] = field(default_factory=dict)  # by model, as it last reported them
    # What it costs to preempt while a prompt is read.
    prompts: PromptPreemptions = field(default_factory=PromptPreemptions)
    stream_stop_s: float = 0.0  # how long abandoned streams occupied their slots lately
    remark: str = ""  # why it could not be seen that a slot of it fell free
    truncated: int = 0  # prompts that it truncated to its context
    cut_to: tuple[int, int] = (0, 0)  # tokens of the last one, and that context
    self_test: str = ""  # how far the daemon's own test of it is

    lent: int = 0  # slots that the daemon before this one still needs

    changed: "Callable[[Server], None]" = lambda server: None  # called when state, slots or models change
    probe_came_back: bool = False  # in the look that goes on
    up_s: float = 0.0  # when it was last seen up, or was first looked at
    probe_due: asyncio.Event = field(default_factory=asyncio.Event)  # somebody wants it looked at
    id: str = field(init=False)  # where its API is: no other server has it, and it never changes
    place: tuple[str, int, str] = field(init=False)  # host, port and prefix, which no two servers share
    local_port: int | None = field(init=False)  # where it listens on this machine; None if it is on another
    ask: Ask = field(init=False)
    _logged: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        upstream = self.upstream
        self.id = upstream.url + self.prefix
        self.place = same_host(upstream.host), upstream.port, self.prefix
        self.local_port = upstream.port if is_loopback(upstream.host) else None
        self.ask = self.prober.asking(upstream.url, self.prefix)

    def __repr__(self) -> str:
        return f"<Server {self.adapter.name} {self.upstream.url} {self.status.state}, {self.slots} slots>"

    # -- what it is ------------------------------------------------------------------------------------

    def target_of(self, target: bytes) -> bytes:
        """Return the target of a client's request at this server: under its prefix."""
        prefix = self.prefix.encode()
        unchanged = not prefix or target == b"*" or is_under(prefix, target)
        return target if unchanged else prefix + target

    def kept_here(self, location: bytes) -> bytes:
        """Return where a redirect of this server leads through the proxy: the path, without its prefix.

        A location at another host is returned as it is, and so is one whose path would be read as a host.
        """
        absolute = _URL.fullmatch(location)
        if absolute is not None:
            host, port = absolute["host"].decode("latin-1"), absolute["port"]
            default = 443 if absolute["scheme"].lower() == b"https" else 80
            if (same_host(host.strip("[]")), int(port or default)) != self.place[:2]:
                return location
        path = location if absolute is None else absolute["path"] or b"/"
        prefix = self.prefix.encode()
        if prefix and is_under(prefix, path):
            path = path[len(prefix) :]
            path = path if path.startswith(b"/") else b"/" + path
        return location if path.startswith(b"//") else path

    async def close(self) -> None:
        """Close all connections to it."""
        await self.upstream.close()
        await self.prober.close()

    # -- how it is -------------------------------------------------------------------------------------

    @property
    def away(self) -> bool:
        """Whether it was up and is not now, or is loading its model: queued requests are kept for it."""
        return self.status.seen and self.status.state in ("down", "loading")

    @property
    def answers(self) -> bool:
        """Whether a request that failed at another can be tried here: it is not down, loading or silent."""
        return self.status.state not in ("down", "loading") and not self.health.hung

    @property
    def standing(self) -> str:
        """Why it gets fewer requests than it has slots, in one word; "" if it does not."""
        rests = "silent" if self.health.hung else "resting" if self.health.rests else ""
        fewer = "warming" if self.health.slots < self.room else "shared" if self.lent else ""
        return self.health.withdrawn or rests or fewer

    @property
    def stamps(self) -> Priority | None:
        """The priority that its requests are stamped with; None if they wait here for a slot instead."""
        priority = self.status.heeding.priority
        if self.annotate == "on":
            return priority or self.adapter.PRIORITY
        return priority if self.annotate == "auto" else None

    @property
    def slots(self) -> int:
        """How many it answers at once: as configured, or as it says."""
        return self.config.slots or self.status.slots

    @property
    def room(self) -> int:
        """How many requests it is sent at once: more than it answers, where it orders them by itself. The
        daemon before this one may need some or all of them.
        """
        return max(0, self.most - self.lent)

    @property
    def most(self) -> int:
        """Its room once no other daemon uses its slots."""
        return self.slots if self.config.slots or self.stamps is None else MAX_IN_FLIGHT

    @property
    def at_once(self) -> int:
        """How many it answers at once, as far as that is known: the others wait inside it."""
        return max(self.slots, self.status.most_running) if self.stamps is not None else self.slots

    def becomes(self, state: str, why: str = "") -> None:
        """Follow what a request has shown of it; one that is "down" is looked at again at once."""
        self.status.state, self.status.detail = state, why
        self.announce()
        if state == "down":
            self.probe_due.set()

    def announce(self) -> None:
        status = self.status
        has = status.models, status.offered
        if self.is_news("", (self.adapter.name, status.state, self.most, self.at_once, status.heeding, *has)):
            self.changed(self)

    def is_news(self, about: str, news: object) -> bool:
        """Whether this differs from the last news about something; it is the last now."""
        before, self._logged[about] = self._logged.get(about, ""), news
        return news != before

    # -- what it has -----------------------------------------------------------------------------------

    def known_as(self, model: str) -> str:
        """Return the one name of a model."""
        return self.adapter.known_as(self.status.aliases.get(model, model))

    def has(self, model: str) -> bool | None:
        """Whether it has a model, by its list; None if it may answer for one that it does not list."""
        offered = self.status.offered
        if offered is not None and self.known_as(model) in offered:
            return True
        return None if offered is None or self.adapter.ANSWERS_ANY_MODEL else False

    def runs_elsewhere(self, model: str) -> bool:
        """Whether it says that a model does not run on its own hardware: requests for it need no slot."""
        found = self.offered_model(model)
        return found is not None and found.remote

    def has_room(self, parsed: ParsedRequest) -> bool:
        """Whether the context has room for a prompt of about its length, as far as is known."""
        context = None if self.loaded is None else self.loaded.context_of(parsed)
        if context is None:
            found, key = self.offered_model(parsed.model), self._key_of(parsed.model)
            loaded = (model.context for model in self.status.models if self._key_of(model.name) == key)
            context = next(loaded, None) or (None if found is None else found.context)
        return context is None or parsed.prompt_tokens <= context

    def offered_model(self, model: str) -> OfferedModel | None:
        """Return what it says of a model; where it has only one, of that, whatever it is called."""
        if not (offered := self.status.offered):
            return None
        found = offered.get(self.known_as(model))
        if found is None and self.adapter.ANSWERS_ANY_MODEL and len(offered) == 1:
            return next(iter(offered.values()))
        return found

    # -- what was learned of it ------------------------------------------------------------------------

    @property
    def proofs(self) -> dict[str, Continuation]:
        """Proofs that preempted answers are continued exactly, by model, of the preferred profile of each."""
        first = {each.served.model: each for each in reversed(self.profiles)}
        return {model: found for model, each in first.items() if (found := each.continuation) is not None}

    def continuation_of(self, model: str) -> VerifiedContinuation | None:
        """Return how it continues a preempted answer of a model; None if no proof holds. A proof for another
        build, model, template or settings proves nothing.
        """
        if not self.profiles or (settings := self.settings_of(model)) is None:
            return None
        ways = {way.name: way for way in self.adapter.CONTINUES}
        for measured, proof in self.proofs.items():
            if proof.way not in ways or self._key_of(measured) != self._key_of(model):
                continue
            if proof.fingerprint and not changed_parts(proof.fingerprint, settings.fingerprint):
                return VerifiedContinuation(ways[proof.way], proof, settings)
        return None

    def settings_of(self, model: str) -> ModelSettings | None:
        return self.settings.get(self._key_of(model))

    async def see_settings(self, ask: Ask | None = None) -> None:
        for model in {self._key_of(model) for model in self.proofs}:
            found = await self.adapter.settings(ask or self.ask, model, self.status.version)
            if found is not None:
                self.settings[model] = found

    def _key_of(self, model: str) -> str:
        return "" if self.adapter.ANSWERS_ANY_MODEL else self.known_as(model)
