"""Why a job waits where it does: each cause, with its words for documentation and its tone on a screen."""

from enum import StrEnum


class Cause(StrEnum):
    """What decides the place of a waiting job, the strongest first."""

    about: str  # completes "The request ..."
    tone: str  # "alert", "warn", "accent", or "soft" for what is usual

    def __new__(cls, value: str, tone: str, about: str) -> "Cause":
        cause = str.__new__(cls, value)
        cause._value_, cause.tone, cause.about = value, tone, about
        return cause

    HELD = "held", "warn", "is held by an operator"
    SESSION = "session", "warn", "waits for its session's turn"
    DOWN = "down", "alert", "needs a server that is not up"
    LIMIT = "limit", "warn", "waits because its client has all the slots that it may have"
    PROMOTED = "promoted", "accent", "was moved to the front by an operator"
    GUARD = "guard", "warn", "is past tau while the starvation guard acts"
    CHORE = "chore", "soft", "is a background request: it runs after interactive ones"
    SWAP = "swap", "warn", "needs another model than the loaded one"
    URGENT = "urgent", "accent", "has a priority or a level of urgency of its own"
    SHARE = "share", "soft", "waits because its client had more service than others"
    ARRIVAL = "arrival", "soft", "waits in the order of arrival, by which the policy goes"
    SIZE = "size", "soft", "waits in the order of the policy, by predicted size"
