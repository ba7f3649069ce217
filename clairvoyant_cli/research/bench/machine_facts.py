"""What a bench ran on: what a reader of its report must know to compare it."""

import platform

from clairvoyant_cli import __version__
from profiles.records import Host


def machine_facts(host: Host) -> dict[str, str]:
    """Return the machine and the software, in words; no names of hosts or users."""
    facts = {
        "processor": f"{host.cpu}, {host.cores} logical cores",
        "memory": f"{host.memory_gib} GiB",
        "system": f"{host.system} {host.machine}",
        "python": platform.python_version(),
        "clairvoyant": __version__,
    }
    driver = f", driver {host.gpu_driver}" if host.gpu_driver else ""
    return facts | {"graphics": ", ".join(host.gpus) + driver} if host.gpus else facts
