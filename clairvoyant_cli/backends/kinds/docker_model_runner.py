"""Docker Model Runner, 1.2.6 (pkg/routing, pkg/ollama, pkg/inference/scheduling)."""

from clairvoyant_cli.backends.adapter import Found
from clairvoyant_cli.backends.imitates_ollama import ImitatesOllama, under
from clairvoyant_cli.backends.prober import Ask
from clairvoyant_cli.protocols import probes
from clairvoyant_cli.protocols.can_continue import Body


class DockerModelRunner(ImitatesOllama):
    """Runs a server for each model, usually llama.cpp's, loads it on demand, and stops it after five idle
    minutes. Nothing tells the slots of those servers.
    """

    name = "docker-model-runner"
    title = "Docker Model Runner"
    usual_ports = (12434,)
    start_command = "docker desktop enable model-runner --tcp 12434"
    get_model_command = "docker model pull ai/smollm2"
    LIMITS = "it does not report how many answers it gives at once: --slots N, for llama.cpp usually 4"
    routes = under("/engines", "/engines/llama.cpp", "/engines/vllm", "/engines/mlx", "/anthropic")

    async def identify(self, ask: Ask, url: str, prefix: str) -> Found | None:
        """Know it by who owns its models, or by its engines where it has none."""
        models = probes.openai_models((await ask(self.models_path)).body)
        owners = [model.owner for model in models or ()]
        if models is None or owners[:1] not in ([], ["docker"]):
            return None
        is_it = owners or "llama.cpp" in probes.members_of((await ask("/engines/status")).body)
        return Found(self, url, prefix) if is_it else None

    def keep_request(self, model: str, *, loaded: bool) -> tuple[str, Body]:
        return "/api/generate", {"model": model} | ({} if loaded else {"keep_alive": 0})


KIND = DockerModelRunner()
