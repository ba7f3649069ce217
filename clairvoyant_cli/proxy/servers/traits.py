"""What was learned of a server from its answers, or measured by `calibrate`."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from clairvoyant_cli.backends.speeds import Speeds
from clairvoyant_cli.protocols.model_settings import ModelSettings
from clairvoyant_cli.proxy.servers.prompt_cuts import PromptCuts
from profiles.records import Profile


@dataclass(slots=True)
class ServerTraits:
    """What is known of one server besides what it says of itself."""

    speeds: Speeds = field(default_factory=Speeds)
    profiles: Sequence[Profile] = ()  # its measurements, the preferred one first
    settings: dict[str, ModelSettings] = field(default_factory=dict)  # by model, as it last reported them
    prompt_cuts: PromptCuts = field(default_factory=PromptCuts)
    stream_stop_s: float = 0.0  # how long abandoned streams occupied their slots lately
    remark: str = ""  # why it could not be seen that a slot of it fell free
    truncated: int = 0  # prompts that it cut to its context
    cut_to: tuple[int, int] = (0, 0)  # tokens of the last one, and that context
    self_test: str = ""  # how far the daemon's own test of it is
    asked_before: dict[int, None] = field(default_factory=dict)  # hashes of questions, the newest last
