"""Nobody hears of a prediction: the library that runs the model reports to its maker unless told not to."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_predicting_leaves_no_trace_in_the_home_of_the_user(tmp_path: Path) -> None:
    """The id that reports go out under is written there, when the library starts."""
    program = (
        "import predictor; from predictor.record import PromptView\n"
        "predictor.load().predict(PromptView('hi'))"
    )
    known = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / ".cache")}
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=known, check=True)
    assert list(tmp_path.rglob("*")) == []
