"""Having a service's daemon end where no service manager can ask for it: it finishes what runs first."""

from collections.abc import Iterator

import psutil

from clairvoyant_cli.service.units import STOP_S
from clairvoyant_cli.system import ask_to_end


def end_daemon(log_file: str, wait_s: float = STOP_S) -> bool:
    """Ask the daemon of this account that logs into a file to end, and wait; kill it if that takes too long.

    Return whether there was one. It may be two processes: in a virtual environment on Windows, a small
    program starts Python and waits for it.
    """
    daemons = list(_logging_into(log_file))
    for process in daemons:
        ask_to_end(process.pid)
    _, alive = psutil.wait_procs(daemons, timeout=wait_s)
    for process in alive:
        try:
            process.kill()
        except psutil.Error:
            continue
    psutil.wait_procs(alive, timeout=5)
    return bool(daemons)


def _logging_into(log_file: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or ()
        if "serve" in words and words[-2:] == ["--log-file", log_file]:
            yield process
