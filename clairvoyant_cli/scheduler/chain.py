"""The chain of a conversation: hashes that tell how much of a prompt a server has read before."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chain:
    """A prompt in pieces, in the order in which a server reads them: tools, system prompt, messages.

    `hashes[i]` identifies the model and the prompt up to the end of piece i, so two prompts share exactly the
    pieces for which their hashes are equal. `characters[i]` is the length of the prompt up to there. A piece
    never spans two messages: the next turn of a conversation begins with all pieces of the turn before.
    """

    hashes: tuple[int, ...] = ()
    characters: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything is known of the prompt."""
        return bool(self.hashes)

    @property
    def length(self) -> int:
        """The characters of the whole prompt."""
        return self.characters[-1] if self.characters else 0


NO_CHAIN = Chain()
