"""Which models the replay backend has, which are loaded, and what time it stamps on answers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from clairvoyant_cli.research.replay.dialect import Json, RefusedError

DEFAULT_MODEL = "replay:latest"


@dataclass(eq=False)
class Models:
    """The models by their full names. `now` is the wall clock."""

    models: tuple[str, ...] = (DEFAULT_MODEL,)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    loaded: set[str] = field(default_factory=set)

    def take(self, model: object) -> str:
        """Return the full name of a model; RefusedError 400 if none is named, 404 if it is not here."""
        if not isinstance(model, str) or not model:
            raise RefusedError(400, "model is required")
        full = model if ":" in model else f"{model}:latest"
        if full not in self.models:
            raise RefusedError(404, f'model "{model}" not found, try pulling it first')
        return full

    def named_in(self, body: Json) -> str:
        """Return the full name of the model that a request names, as `take` does."""
        return self.take(body.get("model", body.get("name")))
