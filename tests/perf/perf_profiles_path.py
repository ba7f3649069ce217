"""What does remembering a request cost the event loop?

    python tests/perf/perf_profiles_path.py

Both with the writer's thread at work, in one run: handing a record over, and an empty call for comparison.
"""

import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from profiles.writer import Writer  # noqa: E402
from tests.fakes.remembered import traffic  # noqa: E402

RATE_PER_S = 500
RECORDS = 3000


def main() -> None:
    """Hand records over at a rate no local model reaches, and print the time each took."""
    rows = list(traffic(RECORDS))
    with tempfile.TemporaryDirectory() as directory:
        writer = Writer(Path(directory) / "c.db")
        taken: list[float] = []
        nothing: list[float] = []
        for row in rows:
            begun = time.perf_counter()
            writer.put(row)
            between = time.perf_counter()
            taken.append(between - begun)
            nothing.append(time.perf_counter() - between)
            time.sleep(1 / RATE_PER_S)
        writer.close()
    for name, times in (("handing over", taken), ("an empty call", nothing)):
        cuts = quantiles(times, n=100)
        print(
            f"{name}: median {median(times) * 1e6:.1f} us, P99 {cuts[98] * 1e6:.1f} us, "
            f"worst {max(times) * 1e6:.0f} us"
        )


if __name__ == "__main__":
    main()
