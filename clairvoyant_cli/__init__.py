"""Clairvoyant: a drop-in sidecar proxy that sends the shortest predicted LLM answer first."""

import os
import sys

__version__ = "0.2.0"

# A wheel has tui, predictor and profiles in here; a checkout, and an editable install, beside this folder.
_SIBLINGS = os.path.join(os.path.dirname(__file__), "siblings")  # noqa: PTH118, PTH120 - pathlib is slow to load
if os.path.isdir(_SIBLINGS):  # noqa: PTH112
    sys.path.insert(0, _SIBLINGS)  # first: another distribution may have a tui, too
