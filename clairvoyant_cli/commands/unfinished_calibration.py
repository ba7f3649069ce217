"""Where an unfinished calibration is kept between two runs: a state in the database, by server and model."""

import time
from pathlib import Path

import msgspec

from clairvoyant_cli.calibrate.partial_results import Measured
from clairvoyant_cli.commands.setup import told_plainly
from profiles.database import reading, writing
from profiles.host import this_host
from profiles.records import Served
from profiles.states import drop_state, load_state, save_state

UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)


class Unfinished:
    """The database at `path` as a shelf; a `fresh` run takes nothing up. `has_kept` says whether anything of
    this run is to be taken up, `found` what was of an earlier one.
    """

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self._path = path
        self._fresh = fresh
        self.has_kept = False
        self.found: Measured | None = None

    def take_up(self, served: Served, seed: int) -> Measured:
        """Return what was measured of a server today by a run that did not end."""
        state = None
        with told_plainly(), reading(self._path) as connection:
            state = load_state(connection, _name(served))
        if state is not None and not self._fresh:
            try:
                measured = msgspec.json.decode(state, type=Measured)
            except UNREADABLE:
                return Measured(served, seed)  # as another version has left it
            if measured.holds_for(served, seed, time.time()) and measured.described():
                self.found = measured
                return measured
        return Measured(served, seed)

    def keep(self, measured: Measured) -> None:
        """Keep it; ClairvoyantError if it cannot be written."""
        if measured.described():
            with told_plainly(), writing(self._path) as connection:
                save_state(connection, _name(measured.served), msgspec.json.encode(measured))
            self.has_kept = True

    def clear(self, served: Served) -> None:
        """Keep nothing of a run that came to its end."""
        with told_plainly(), writing(self._path) as connection:
            drop_state(connection, _name(served))
        self.has_kept = False


def _name(served: Served) -> str:
    return f"calibration {this_host().key} {served.backend} {served.place} {served.url} {served.model}"
