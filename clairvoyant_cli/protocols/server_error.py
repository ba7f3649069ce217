"""Says why a server failed, in its own words, without any that may be from a request.

Servers quote what they were sent, in quotation marks or without. So only the words of `USUAL` are said;
others become an ellipsis, as do all numbers.
"""

import re

from clairvoyant_cli.protocols.lenient_json import Object, object_in, object_of, text

MOST_CHARS = 80
READ_CHARS = 400
LEAST_WORDS = 2  # that are said: fewer say nothing

_QUOTED = re.compile(r"""(?<![A-Za-z])(["'`“‘«{\[<]).*?(?:["'`”’»}\]>](?![A-Za-z])|$)""", re.DOTALL)
_WORD = re.compile(r"[^\W_]+")
_NUMBERED = re.compile(r"[0-9]?$")  # as in CUDA0
_GAP = re.compile(r"[^\w:;,.]*…[…\W]*")

USUAL = frozenset(
    "a abnormally aborted accept accepted accepting access address after again allocate allocated "
    "allocating allocation already an and any are as at attempt available backend background bad batch be "
    "because been before being below between broken buffer busy but by cache canceled cancelled cannot "
    "capacity card channel check cluster code command communication computation compute connect "
    "connection connections context core corrupt corrupted could crash crashed cublas cuda cudamalloc "
    "cudnn current currently dead deadline decode decoding denied device did died disk does driver due "
    "during embedding empty encode encountered end engine enginecore eof error errored errors exceed "
    "exceeded exceeds exception execute execution exhausted exists exit exited expected fail failed "
    "failing failure fatal fault file files find for format found free freed from full gateway generate "
    "generation gone gpu gpus graph had has have heap hip host http illegal image in increase information "
    "initialise initialize input insufficient internal interrupted invalid is issue it kernel kill killed "
    "kv launch layer layers length less limit limitations limited llama load loaded loader loading locked "
    "logs long longer loop lost lower machine max maximum may memory metal missing model models more mps "
    "must network no node not null of off offload on only open operation option or out over overflow "
    "overloaded panic parameter path pending permission physical pipe port prefill prepare problem "
    "process processing prompt provided queue queued quota reached read ready refused reject rejected "
    "released request requested requests require required requires reset resource resources respond "
    "response restart restarted restarting retries retry rocm root router run runner running runtime see "
    "segmentation sequence server service shared shut shutdown shutting signal size slot slots small "
    "snapshot space start started starting state status still stop stopped stopping stream successfully "
    "support supported supports syntax system takes temporarily temporary tensor terminated terminating "
    "termination than that the then there this thread time timed timeout timeouts to token tokens too "
    "trace tried try trying unable unavailable unexpected unexpectedly unhealthy unknown unload unloaded "
    "unloading unreachable unsupported up upstream use used using value version vram vulkan wait waiting "
    "was weights were when while with without worker write".split()
)
"""What servers say of failures."""


def cause_of(answer: bytes) -> str:
    """Return the cause in an answer with an error, "" if none can be told."""
    first = re.split(r"[\n;]|\. ", _message(answer)[:READ_CHARS].strip(), maxsplit=1)[0]
    said = 0

    def shown(word: re.Match[str]) -> str:
        nonlocal said
        usual = _NUMBERED.sub("", word[0]).lower() in USUAL
        said += usual
        return word[0] if usual else "…"

    words = _GAP.sub(" … ", _WORD.sub(shown, _QUOTED.sub(" … ", first)))
    return "" if said < LEAST_WORDS else " ".join(words.split())[:MOST_CHARS].strip(" :,.…")


def _message(answer: bytes) -> str:
    """Return the message of an error in any of the dialects: of the whole answer, or of the last event of a
    stream that has one.
    """
    lines = [answer, *(line.removeprefix(b"data:") for line in reversed(answer.split(b"\n")) if line.strip())]
    for line in lines:
        event = object_of(line)
        if event is not None and (found := _message_in(event)):
            return found
    is_text = not answer.lstrip().startswith((b"{", b"[", b"<", b"data:", b"event:"))
    return answer.decode(errors="replace") if is_text else ""


def _message_in(event: Object) -> str:
    if "response" in event and "error" not in event:  # the last event of Responses
        event = object_in(event["response"])
    held = object_in(event["error"])
    return text(event["error"]) or text(held["message"]) or text(event["message"]) or text(event["detail"])
