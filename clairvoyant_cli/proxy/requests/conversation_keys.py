"""Recognises the next turn of a conversation by hashes, keyed per run so that texts cannot be guessed."""

import os
from hashlib import blake2b

from clairvoyant_cli.scheduler.kv_cache import Chain, PrefixLink
from predictor.record import PromptView

CHARS_A_TOKEN = 4.0


class Conversations:
    """Tells conversations by the chain of their turns (`scheduler.kv_cache`)."""

    def __init__(self) -> None:
        self._key = os.urandom(16)

    def chain_of(self, view: PromptView | None) -> Chain:
        """Return the chain of a request: a link for its system prompt and for each turn of the user, to which
        the answer counts, as the cache holds it too. Empty if nothing is known of the request.
        """
        if view is None:
            return ()
        state = blake2b(f"{view.model}\0{view.tools}\0".encode(), digest_size=8, key=self._key)
        links: list[PrefixLink] = []
        tokens = 0.0

        def said(role: str, text: str, characters: int) -> None:
            nonlocal tokens
            state.update(f"{role}\0{characters}\0".encode())
            state.update(text.encode("utf-8", "surrogatepass"))
            tokens += characters / CHARS_A_TOKEN
            if role in ("system", "user"):
                links.append(PrefixLink(int.from_bytes(state.digest()), tokens))
            elif links:
                links[-1] = links[-1]._replace(tokens=tokens)

        if view.system:
            said("system", view.system, len(view.system))
        for turn in view.history:
            said(turn.role, turn.text, turn.characters)
        said("user", view.prompt, view.characters)
        return tuple(links)
