"""Do two calibrations in a row agree? A real llama.cpp server, with a model of random weights.

    python tests/perf/perf_profiles_agreement.py [--runs 2] [--slots 1]

Such a model hardly ever ends by itself: short questions are answered up to their cap, as are long ones.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from clairvoyant_cli.calibrate.queueing import cs2  # noqa: E402
from clairvoyant_cli.calibrate.session import STANDARD  # noqa: E402
from profiles.records import Profile  # noqa: E402
from tests.fakes.calibrating import measured  # noqa: E402
from tests.fakes.llamacpp_server import llama_server  # noqa: E402
from tests.fakes.tiny_gguf import write_tiny_model  # noqa: E402

FIELDS = ("tau_s", "decode_tokens_per_s", "prefill_tokens_per_s", "ttft_s", "slots")


def main(runs: int, slots: int) -> None:
    """Calibrate so many times and print how far the runs are apart."""
    profiles: list[Profile] = []
    with tempfile.TemporaryDirectory() as directory:
        model = write_tiny_model(Path(directory) / "tiny.gguf")
        with llama_server(model, slots=slots) as server:
            for _ in range(runs):
                outcome, _ = asyncio.run(measured(server.base_url, STANDARD, "llamacpp"))
                profile = outcome.profile
                profiles.append(profile)
                alone = [sample.sojourn_s for sample in outcome.samples if sample.phase == "service"]
                printed = next(mix.cs2 for mix in profile.mixes if mix.name == "mixed")
                print(
                    f"mu_short {profile.mu_short_s}, C_s^2 printed {printed:.6f}, of the samples "
                    f"{cs2(alone):.6f}, took {profile.took_s:.0f} s; {'; '.join(profile.advice)}",
                    flush=True,
                )
    for name in FIELDS:
        values = [getattr(profile, name) for profile in profiles]
        listed = ", ".join(f"{value:.4g}" for value in values)
        print(f"{name}: {listed}; apart {max(values) / min(values) - 1:.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--slots", type=int, default=1)
    arguments = parser.parse_args()
    main(arguments.runs, arguments.slots)
