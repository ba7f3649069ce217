"""Keeps what the answers of each principal teach apart: nobody's answers can spoil the predictions of others.

Rule 1: a principal is predicted from its own answers. Until it has enough of them, it is also predicted from
what the answers of at least two others agree on, each with one vote.
Rule 2: principal 0 is everybody where requests need no key. What was learned of it is where a principal
begins; once requests need a key, nothing teaches it.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from statistics import median

from predictor.errors import ModelError
from predictor.lexical.online import Correction, Features, ModelEdges

EVERYBODY = 0

MAX_HEADS = 16  # of 0.6 MB each; beyond them the principal with the fewest answers loses its own

OWN_ANSWERS = 50  # from this many on, a principal is predicted from its own answers alone

Exported = Mapping[str, tuple[int, Mapping[str, tuple[float, ...]]]]


@dataclass(frozen=True, slots=True)
class Head:
    """What was learned from one principal."""

    correction: Correction
    edges: ModelEdges = field(default_factory=ModelEdges)


class Heads:
    """The head of each principal, by the hash of its name."""

    def __init__(self, width: int) -> None:
        """Start with nothing learned, for dense vectors of `width` numbers."""
        self._width = width
        self._known = {EVERYBODY: Head(Correction(width))}

    def of(self, principal: int) -> Head:
        """Return a principal's head, or that of everybody."""
        return self._known.get(principal) or self._known[EVERYBODY]

    def to_teach(self, principal: int) -> Head:
        """Return a principal's head, to be kept."""
        if principal not in self._known:
            if len(self._known) > MAX_HEADS:
                answers = {each: head.correction.learnt for each, head in self._known.items() if each}
                del self._known[min(answers, key=answers.__getitem__)]
            self._known[principal] = deepcopy(self._known[EVERYBODY])
        return self._known[principal]

    def shift(self, head: Head, features: Features) -> float:
        """Return what to add to the mean log tokens of a principal with this head."""
        own, share = head.correction.shift(features), min(1.0, head.correction.learnt / OWN_ANSWERS)
        if share == 1.0:
            return own
        others = [each for name, each in self._known.items() if name and each is not head]
        if len(others) < 2:
            return own
        # With a vote for no change: two others move a prediction as far as both would.
        agreed = median([0.0, *(each.correction.shift(features) for each in others)])
        return share * own + (1.0 - share) * agreed

    def export_state(self) -> tuple[Exported, bytes]:
        """Return the bytes of each correction with its edges, fit for JSON, and the corrections."""
        told, parts = dict[str, tuple[int, Mapping[str, tuple[float, ...]]]](), list[bytes]()
        for name, head in self._known.items():
            parts.append(head.correction.export_state())
            told[str(name)] = len(parts[-1]), head.edges.export_state()
        return told, b"".join(parts)

    def import_state(self, told: Exported, body: bytes) -> None:
        """Restore what `export_state` returned; a LookupError, TypeError, ValueError or ModelError, and
        no change, if it is damaged.
        """
        known, at = dict[int, Head](), 0
        for name, (size, shifts) in told.items():
            head = known[int(name)] = Head(Correction.of_state(body[at : at + size], self._width))
            head.edges.import_state(shifts)
            at += size
        if at != len(body) or EVERYBODY not in known:
            raise ModelError("the learnt state is damaged: learning starts over")
        self._known = known
