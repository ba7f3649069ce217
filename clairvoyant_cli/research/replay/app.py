"""The replay backend as an ASGI application: Ollama's routes and the OpenAI and Anthropic ones it shares."""

from collections.abc import Callable
from datetime import UTC, datetime

from starlette.applications import Starlette
from starlette.routing import Route

from clairvoyant_cli.research.replay.embedding import EMBEDDING_ROUTES, Embedding
from clairvoyant_cli.research.replay.engine import Engine
from clairvoyant_cli.research.replay.generation import DIALECTS, Generation
from clairvoyant_cli.research.replay.information import Information
from clairvoyant_cli.research.replay.models import DEFAULT_MODEL, Models


class Replay:
    """A simulated LLM server: `app` is what a web server runs, `engine` holds controls and journal."""

    def __init__(
        self,
        engine: Engine | None = None,
        models: tuple[str, ...] = (DEFAULT_MODEL,),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Put the server together. A fixed wall clock `now` makes equal requests give equal bytes."""
        self.engine = engine = Engine() if engine is None else engine
        self.shelf = shelf = Models(models, now)
        routes = Information(shelf).routes()
        routes += [Route(path, Generation(engine, shelf, path), methods=["POST"]) for path in DIALECTS]
        routes += [Route(path, Embedding(engine, shelf, path), methods=["POST"]) for path in EMBEDDING_ROUTES]
        self.app = Starlette(routes=routes)
