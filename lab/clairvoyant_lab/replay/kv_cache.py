"""The KV cache of a simulated server: the prompts in its slots and in its host memory, as in llama.cpp."""

from dataclasses import dataclass, field

CHARS_PER_TOKEN = 4

MIN_SIMILARITY = 0.1
"""The share of a prompt that a slot must hold to be chosen for it (`--slot-prompt-similarity`)."""

MIN_KEPT = 0.5
"""A slot that would keep less than this share of its content is saved to host memory first."""

MIN_RESTORED = 0.25
"""The least share of a saved prompt that must be reused for it to be restored."""


def shared_chars(first: str, second: str) -> int:
    """Return the length of the longest common prefix."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(slots=True, eq=False)
class KvCache:
    """The texts that a server need not read again: one a slot, and up to `host_tokens` in host memory.

    `texts` has the content of each slot, `saved` that of the host memory, oldest first.
    """

    slots: int = 1
    host_tokens: int = 0
    texts: list[str] = field(init=False)
    saved: list[str] = field(default_factory=list)
    _free: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.texts = [""] * self.slots
        self._free = list(range(self.slots))  # the least recently used first

    def take(self, prompt: str) -> tuple[int, int]:
        """Choose a free slot for a prompt. Return it, and the number of characters that are cached there."""
        slot = max(self._free, key=lambda each: shared_chars(self.texts[each], prompt))
        shared = shared_chars(self.texts[slot], prompt)
        if shared <= MIN_SIMILARITY * len(prompt):
            slot, kept = self._free[0], False
        else:
            kept = shared >= MIN_KEPT * len(self.texts[slot])
        self._free.remove(slot)
        if not kept and self.host_tokens:
            self._save(self.texts[slot])
            self._restore(slot, prompt)
            self._evict()
        return slot, shared_chars(self.texts[slot], prompt)

    def release(self, slot: int, text: str) -> None:
        self.texts[slot] = text
        self._free.append(slot)

    def _save(self, text: str) -> None:
        if text and not any(saved.startswith(text) for saved in self.saved):
            self.saved = [saved for saved in self.saved if not text.startswith(saved)] + [text]

    def _restore(self, slot: int, prompt: str) -> None:
        """Move the saved prompt that shares most into the slot, if it shares more than the slot does."""

        def rank(text: str) -> tuple[int, float]:
            shared = shared_chars(text, prompt)
            return shared, shared / max(1, len(text))

        worth = [text for text in self.saved if rank(text)[1] >= MIN_RESTORED]
        best = max(worth, key=rank, default="")
        if all(ours > others for ours, others in zip(rank(best), rank(self.texts[slot]), strict=True)):
            self.saved.remove(best)
            self.texts[slot] = best

    def _evict(self) -> None:
        # llama.cpp keeps the last one, however large.
        while len(self.saved) > 1 and sum(map(len, self.saved)) > self.host_tokens * CHARS_PER_TOKEN:
            del self.saved[0]
