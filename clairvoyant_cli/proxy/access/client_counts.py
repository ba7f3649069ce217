"""Counts per client in bounded memory, as clients may choose any number of names."""

from collections import Counter

MAX_CLIENTS = 2000


class ClientCounts(Counter[str]):
    """A count per client, of at most MAX_CLIENTS; those with the fewest, then the oldest, are dropped."""

    def add(self, client: str, number: int = 1) -> None:
        self[client] += number
        if len(self) > MAX_CLIENTS:
            newest_first = list(reversed(self.items()))
            most = sorted(newest_first, key=lambda item: item[1], reverse=True)[: MAX_CLIENTS // 2]
            self.clear()
            self.update(dict(reversed(most)))
