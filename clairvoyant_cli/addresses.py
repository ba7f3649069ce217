"""Checks URLs, hosts and ports that users give, before anything is sent to them."""

from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address
from socket import inet_aton, inet_ntoa
from unicodedata import category
from urllib.parse import urlsplit

from clairvoyant_cli.errors import ClairvoyantError, InputError

MAX_URL_CHARS = 65_536

DEFAULT_PORT = 7117  # where the proxy listens by default: no LLM server or chat front end uses this port
Address = tuple[str, int]  # host and port
THIS_MACHINE = "127.0.0.1"
"""The one spelling of all loopback addresses, and the client of all requests from them: a program can choose
any of 16 million."""

ANY_HOST = ("0.0.0.0", "::", "localhost")  # noqa: S104 - compared
"""Hosts whose listeners are reached at `THIS_MACHINE`."""

_LOCAL_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")

SHOWN_CHARS = 80  # so much of what is refused is quoted
BACKEND_NAMES = (
    *("ollama", "llamacpp", "lmstudio", "jan"),
    *("dynamo", "smg", "vllm", "sglang", "mlx-lm", "vllm-mlx"),
    *("koboldcpp", "llama-cpp-python", "tabbyapi", "text-generation-webui", "mlx-omni-server"),
    *("docker-model-runner", "lemonade", "localai"),
)
"""LLM servers that are found by name, at their usual ports. If several run, the first of them is chosen."""

MOVABLE = ("ollama", "llamacpp", "lmstudio")
"""Those that can be moved to another port, so that the proxy takes their place."""

OTHER_KIND = "other"  # any OpenAI-compatible server that is none of them
BACKEND_KINDS = (*BACKEND_NAMES, "llm-d", OTHER_KIND)
"""LLM servers whose behaviour is known, each declared in a module of that name in `backends/kinds`."""


def check_url(url: str, like: str, what: str = "URL") -> None:
    """Raise ClairvoyantError unless a URL, with or without http://, is valid; `like` is a valid example."""
    if not is_url(url if "://" in url else f"http://{url}"):
        raise InputError(f"{url[:SHOWN_CHARS]!r} is not a {what}; give one like {like}")


def check_backend(wanted: str | None) -> None:
    """Raise ClairvoyantError if a backend is given, and is neither a URL nor a name that is known."""
    if wanted is None or wanted in BACKEND_NAMES:
        return
    if not any(sign in wanted for sign in "./:"):
        known = ", ".join(BACKEND_NAMES)
        raise InputError(f"no backend {wanted[:SHOWN_CHARS]!r}; give {known}, or a URL")
    check_url(wanted, "http://127.0.0.1:11434", "backend URL")


def is_backend(wanted: str) -> bool:
    """Whether a backend is given by a name that is known, or by a URL."""
    with suppress(ClairvoyantError):
        check_backend(wanted)
        return True
    return False


def is_host(host: str) -> bool:
    """Whether a host can be looked up: a name whose labels DNS can hold, or an IP address."""
    name = host.removesuffix(".")
    if ":" in name:
        return is_address(name)
    try:
        meant = name.encode("idna").decode("idna")
        if name.rpartition(".")[2].isdigit():
            inet_aton(name)  # 127.1 is an address, 999.1.1.1 is none
    except (UnicodeError, OSError):
        return False
    return bool(name) and all(category(each)[0] in "LMN" or each in "-._" for each in name + meant)


@lru_cache(maxsize=1024)  # asked for each request, of the same few programs
def is_address(host: str) -> bool:
    """Whether a host is given by its IP address."""
    with suppress(ValueError):
        ip_address(host)
        return True
    return False


@lru_cache(maxsize=1024)  # asked for each request, of the same few clients
def is_loopback(host: str) -> bool:
    """Whether an address is reached from its own machine alone."""
    with suppress(ValueError):
        return host == "localhost" or ip_address(host).is_loopback
    return False


def same_host(host: str) -> str:
    """Return one spelling for all that mean the same host; the loopback addresses are one."""
    host = host.lower().removesuffix(".")
    with suppress(OSError):
        host = inet_ntoa(inet_aton(host))  # 127.1 and 2130706433 are addresses to the system, too
    try:
        address = ip_address(host)
    except ValueError:
        return THIS_MACHINE if host in _LOCAL_NAMES else host
    address = getattr(address, "ipv4_mapped", None) or address
    return THIS_MACHINE if address.is_unspecified or str(address) == "::1" else str(address)


def joined(host: str, port: int) -> str:
    """Return HOST:PORT, with brackets round an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def local_url(host: str, port: int) -> str:
    """Return where this machine reaches what listens at a host and port. Names are not used: localhost may
    resolve to another listener.
    """
    return f"http://{joined(THIS_MACHINE if host in ANY_HOST else host, port)}"


def parse_address(text: str, name: str) -> Address:
    """Return host and port of HOST:PORT; ClairvoyantError that begins with `name` if it is something else."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 65536
    if ":" not in text or not is_port or not (not host or is_host(host)):
        raise InputError(f"{name} must be HOST:PORT, not {text[:SHOWN_CHARS]!r}")
    return host or "0.0.0.0", int(port)  # noqa: S104 - ":8080" asks for it; keys are required


def is_url(url: str) -> bool:
    """Whether a text is a URL with http or https and a host that can be looked up."""
    if not url.isprintable() or any(each.isspace() for each in url) or len(url) > MAX_URL_CHARS:
        return False
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # which raises ValueError for an invalid port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(host) and is_host(host or "")
