"""Tells programs that work through a batch from those that a person waits for, by how they send."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from predictor.record import PromptView, Task

RUN = 20
"""Requests in a row that make a batch: an agent's session, which is none, has 43 turns at the median
(vllm-project/vllm#57103), but its turns follow each other in one conversation."""

PAUSE_S = 10.0
"""A longer pause is a person's: of an agent's next requests 95 % come sooner (vllm-project/router#285)."""

OPENING_CHARS = 32  # of a prompt: one template begins so each time
MAX_CLIENTS = 1000


@dataclass(slots=True)
class _Sender:
    """What a client has sent lately. `run` counts the latest requests in a row that look like a batch."""

    run: int = 0
    open: int = 0  # requests that have not ended
    template: int = 0
    quiet_since_s: float = 0.0
    pardoned: bool = False


@dataclass(slots=True)
class Batches:
    """Judges clients by their requests; `say` logs what changes."""

    say: Callable[[int, str], None]
    _senders: dict[str, _Sender] = field(default_factory=dict)

    def asked(self, client: str, parsed: ParsedRequest, now: float) -> bool:
        """Count a request; return whether its client is in the background."""
        sender = self._senders.pop(client, None) or _Sender(quiet_since_s=now)
        self._senders[client] = sender  # the latest last
        if len(self._senders) > MAX_CLIENTS:
            del self._senders[next(iter(self._senders))]
        why, was = self._not_a_batch(sender, parsed, now), sender.run >= RUN
        sender.run = 0 if why else sender.run + 1
        if sender.pardoned:
            return False
        if was and why:
            self.say(logging.INFO, f"{client} is no longer in the background: it {why}")
        elif sender.run == RUN:
            what = "repeat one template" if parsed.stream else "are not streamed"
            self.say(
                logging.INFO,
                f"{client} is in the background: {RUN} requests in a row without a pause {what}; to undo it: "
                f'clairvoyant act interactive "{client}"',
            )
        return sender.run >= RUN

    def admitted(self, client: str) -> None:
        if (sender := self._senders.get(client)) is not None:
            sender.open += 1

    def ended(self, client: str, now: float) -> None:
        if (sender := self._senders.get(client)) is not None:
            sender.open, sender.quiet_since_s = max(sender.open - 1, 0), now

    def pardon(self, client: str) -> bool:
        """Count a client as interactive from now on; False if it has sent nothing."""
        if (sender := self._senders.get(client)) is not None:
            sender.pardoned = True
        return sender is not None

    def _not_a_batch(self, sender: _Sender, parsed: ParsedRequest, now: float) -> str:
        """Return what a client did that programs with a batch do not do, "" for nothing."""
        view = parsed.view or PromptView("", task=Task.UNKNOWN)
        before, sender.template = sender.template, hash((view.system, view.prompt[:OPENING_CHARS]))
        if not sender.open and now - sender.quiet_since_s > PAUSE_S:
            return f"paused for {now - sender.quiet_since_s:.0f} s"
        if view.step is not None or view.history or parsed.conversation.agentic:
            return "continued a conversation or offered tools"
        if view.task in (Task.INFILL, Task.UNKNOWN):
            return "sent something else than chats and embeddings"
        return "streamed another prompt" if parsed.stream and sender.template != before else ""
