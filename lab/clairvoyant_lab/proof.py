"""The profile of the simulated backend, which resumes cut answers by construction."""

from profiles.records import MIN_TRIALS, Continuation, Host, Profile, Served


def proven(served: Served, resume_s: float, slots: int, fingerprint: str = "") -> Profile:
    """Return a profile that proves it for a model with this fingerprint; resuming takes `resume_s`."""
    proof = Continuation(
        "prefill",
        MIN_TRIALS,
        MIN_TRIALS,
        resume_s=resume_s,
        repeats=MIN_TRIALS // 2,
        exact_repeats=MIN_TRIALS // 2,
        fingerprint=fingerprint,
    )
    return Profile(
        name="replay",
        measured_at=0.0,
        host=Host(),
        served=served,
        plan="",
        method="",
        concurrency=1,
        mu_short_s=None,
        tau_s=None,
        decode_tokens_per_s=None,
        prefill_tokens_per_s=None,
        ttft_s=None,
        slots=slots,
        continuations=(proof,),
    )
