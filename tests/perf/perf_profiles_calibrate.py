"""How true is a calibration? A simulated backend of known speeds and lengths, in a process of its own.

    python tests/perf/perf_profiles_calibrate.py [--decode 400] [--slots 1 2 4]

The truth owes nothing to the run: each answer's length is known before it is asked for, its service time
is length over speed, and first come first served makes the sojourn times of the same order of questions.
"""

import argparse
import asyncio
import sys
from pathlib import Path
from random import Random
from statistics import fmean

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from clairvoyant_cli.calibrate.questions import (  # noqa: E402
    Question,
    long_questions,
    mixed,
    short_questions,
)
from clairvoyant_cli.calibrate.queueing import sojourns  # noqa: E402
from clairvoyant_cli.calibrate.session import SHORTS_PER_LONG, STANDARD  # noqa: E402
from tests.fakes.calibrating import as_asked, measured, replay  # noqa: E402
from tests.fakes.child import child  # noqa: E402
from tests.fakes.replay_backend import digest  # noqa: E402

PREFILL_PER_DECODE = 20.0


def tokens_of(question: Question) -> int:
    """Return the length the backend will answer with; it seeds as its engine does."""
    rng = Random(f"0:{digest(question.prompt)}")
    return min(question.cap, as_asked(question.prompt, rng))


def true_mu_short_s(slots: int, decode: float, prefill: float) -> float:
    """Return the mean sojourn of the Short answers in the queue phase of the standard plan."""
    in_flight, count = STANDARD.queue_phase(slots)
    questions = mixed(
        short_questions(0), long_questions(0), count=count, shorts_per_long=SHORTS_PER_LONG, seed=0
    )
    services = [-(-len(q.prompt) // 4) / prefill + tokens_of(q) / decode for q in questions]
    times = sojourns(services, in_flight, slots)
    return fmean(
        time_s
        for number, (question, time_s) in enumerate(zip(questions, times, strict=True))
        if number >= in_flight and tokens_of(question) < 200
    )


async def serve(slots: int, decode: float, prefill: float) -> None:
    """Be the backend."""
    async with replay(slots, decode, prefill) as (_, url):
        print(url, flush=True)
        await asyncio.Event().wait()


def off(measured_value: float | None, truth: float) -> str:
    """Say a value and how far it is off."""
    if measured_value is None:
        return "none"
    return f"{measured_value:.4g} ({measured_value / truth - 1:+.2%})"


def main(decode: float, all_slots: list[int], dialects: list[str]) -> None:
    """Print what was measured beside what is true."""
    prefill = decode * PREFILL_PER_DECODE
    for dialect in dialects:
        for slots in all_slots:
            truth = true_mu_short_s(slots, decode, prefill)
            with child(__file__, "--serve", slots, decode, prefill) as url:
                outcome, _ = asyncio.run(measured(url, STANDARD, dialect))
            profile = outcome.profile
            mu_short = profile.mu_short_s
            print(
                f"{dialect} slots {slots}: found {profile.slots}; mu_short {truth:.4g} s, measured "
                f"{off(mu_short.mean if mu_short else None, truth)} s; tau {3 * truth:.4g} s, measured "
                f"{off(profile.tau_s, 3 * truth)} s; decode {off(profile.decode_tokens_per_s, decode)}; "
                f"prefill {off(profile.prefill_tokens_per_s, prefill)}; took {profile.took_s:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        asyncio.run(serve(int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])))
    parser = argparse.ArgumentParser()
    parser.add_argument("--decode", type=float, default=400.0)
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--dialects", nargs="+", default=["ollama", "lmstudio"])
    arguments = parser.parse_args()
    main(arguments.decode, arguments.slots, arguments.dialects)
