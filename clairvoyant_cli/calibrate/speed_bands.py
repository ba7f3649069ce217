"""Speeds by the length of the prompt, one request at a time."""

from collections.abc import Sequence
from secrets import randbits
from statistics import fmean, median

from clairvoyant_cli.calibrate.client import Answer
from clairvoyant_cli.calibrate.questions import reading
from clairvoyant_cli.calibrate.session import Session, Step
from clairvoyant_cli.errors import ClairvoyantError
from profiles.records import Band, Sample

READINGS = 2
SHARE = 0.25
"""Share of what is left of a bounded run that one band may take."""


async def measure_bands(session: Session) -> list[Band]:
    """Measure the plan's bands, the shorter prompts first; stop where one no longer fits the context."""
    lengths = session.plan.bands
    bands: list[Band] = []
    for number, tokens in enumerate(lengths):
        if (known := session.measured.bands.get(tokens)) is not None:
            bands.append(known)
            continue
        session.tell(Step(f"prompts of {tokens} tokens", number, len(lengths), session.remaining_s))
        if bands and not session.has_time_for(_expected_s(bands[-1], tokens), SHARE):
            break
        try:
            # A beginning that no earlier run had either, or the server would find the prompt in its cache.
            answers = [await session.ask_alone(reading(tokens, randbits(40))) for _ in range(READINGS)]
        except ClairvoyantError:
            if not bands:
                raise
            break
        bands.append(_band(answers, session.measured.samples))
        session.measured.bands[tokens] = bands[-1]
    session.prefill_rates += [band.prefill_tokens_per_s for band in bands if band.prefill_tokens_per_s]
    return bands


def _band(answers: Sequence[Answer], singles: Sequence[Sample]) -> Band:
    told = [rate for answer in answers if (rate := answer.prefill_tokens_per_s) is not None]
    decode = [rate for answer in answers if (rate := answer.decode_tokens_per_s) is not None]
    return Band(
        prompt_tokens=round(fmean(answer.prompt_tokens for answer in answers)),
        prefill_tokens_per_s=median(told) if told else _seen_prefill(answers, singles),
        decode_tokens_per_s=median(decode) if decode else None,
        ttft_s=fmean(answer.ttft_s for answer in answers),
    )


def _seen_prefill(answers: Sequence[Answer], singles: Sequence[Sample]) -> float | None:
    """Return prompt tokens per second by how much later a longer prompt's first token came.

    The difference leaves out what every request pays: the connection, and the first token itself.
    """
    quickest = min(answers, key=lambda answer: answer.ttft_s)
    base = sorted(singles, key=lambda sample: sample.ttft_s)[: max(1, len(singles) // 2)]
    more_tokens = quickest.prompt_tokens - fmean(sample.prompt_tokens for sample in base)
    later_s = quickest.ttft_s - fmean(sample.ttft_s for sample in base)
    return more_tokens / later_s if more_tokens > 0 and later_s > 0 else None


def _expected_s(shorter: Band, tokens: int) -> float:
    return READINGS * shorter.ttft_s * tokens / max(1, shorter.prompt_tokens)
