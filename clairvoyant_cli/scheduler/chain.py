"""The chain of a conversation: hashes that tell how much of a prompt a server has read before."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a prompt: first `tools` tools, then `systems` parts of the system text, then messages.

    `hashes[k]` identifies the model and part k, wherever it is in a prompt. `ends[k]` is the length of the
    prompt up to the end of part k, in characters.
    """

    hashes: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    tools: int = 0
    systems: int = 0

    @property
    def before(self) -> int:
        """The number of parts before the messages."""
        return self.tools + self.systems


NO_PARTS = Parts()


@dataclass(frozen=True, slots=True)
class Chain:
    """A prompt in pieces, in the order in which a server reads them: tools, system prompt, messages.

    `hashes[i]` identifies the model and the prompt up to the end of piece i, so two prompts share exactly the
    pieces for which their hashes are equal. `characters[i]` is the length of the prompt up to there. A piece
    never spans two parts: the next turn of a conversation begins with all pieces of the turn before.
    """

    hashes: tuple[int, ...] = ()
    characters: tuple[int, ...] = ()
    parts: Parts = NO_PARTS

    def __bool__(self) -> bool:
        """Whether anything is known of the prompt."""
        return bool(self.hashes)

    @property
    def length(self) -> int:
        """The characters of the whole prompt."""
        return self.characters[-1] if self.characters else 0


NO_CHAIN = Chain()
