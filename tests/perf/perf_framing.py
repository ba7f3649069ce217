"""The framing module against h11: generated messages, then fragments put together by hypothesis.

    python tests/perf/perf_framing.py [--messages N] [--minutes M] [--seed S]

The default test run makes 2,000 messages each way; this makes 20,000, and then fuzzes for as long as it is
told. A difference that must not be, or an exception, ends it with the bytes that showed it.
"""

import argparse
import sys
import time
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from clairvoyant_cli.http.heads import read_request_head  # noqa: E402
from tests.http.oracle import (  # noqa: E402
    Messages,
    complaint,
    h11_requests,
    h11_responses,
    our_requests,
    our_responses,
    packets,
    requests_agree,
    responses_agree,
)

FRAGMENTS = [
    b"GET / HTTP/1.1\r\n", b"POST /a HTTP/1.1\r\n", b"HEAD * HTTP/1.0\r\n", b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 103 \r\n", b"HTTP/1.0 204 x\r\n", b"Host: t\r\n", b"Content-Length: 5\r\n",
    b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n",
    b"Connection: content-length\r\n", b"Connection: Upgrade\r\n", b"Upgrade: websocket\r\n",
    b"Expect: 100-continue\r\n", b"TE: trailers\r\n", b"Trailer: X\r\n", b"X: y\r\n", b" folded\r\n",
    b"\r\n", b"\n", b"\r", b"river", b"5\r\n", b"0\r\n", b"5;e=1\r\n", b"0\r\n\r\n", b"f" * 18,
    b"5\r\nriver\r\n", b"0\r\nX: y\r\n\r\n", b"\x00", b"\xff", b" ", b"\t", b":", b",", b"chunked",
    b"Content-Length", b"Transfer-Encoding: ",
]  # fmt: skip

pieces = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.binary(max_size=6)), max_size=25)


def generated(count: int, seed: int) -> None:
    """Compare so many generated messages each way."""
    random = Random(seed)
    messages = Messages(random)
    start = time.perf_counter()
    for _ in range(count):
        requests_agree(random, messages)
        responses_agree(random, messages)
    print(f"{count} requests and {count} answers, no difference ({time.perf_counter() - start:.0f} s)")


def fuzzed(minutes: float, seed: int) -> None:
    """Put fragments together for so long, and read what comes of it both ways."""
    examples = 0

    @settings(max_examples=20_000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(pieces, st.sampled_from([b"GET", b"HEAD"]), st.randoms(use_true_random=False))
    def compare(parts: list[bytes], method: bytes, random: Random) -> None:
        nonlocal examples
        examples += 1
        raw = b"".join(parts)
        cut = packets(random, raw)
        ours = our_requests(cut)
        assert ours.same_as(our_requests([raw])), raw
        assert complaint(ours, h11_requests(raw)) is None, (raw, complaint(ours, h11_requests(raw)))
        request = read_request_head(method + b" / HTTP/1.1\r\nHost: t\r\n")
        answer = our_responses(cut, request)
        assert answer.same_as(our_responses([raw], request)), raw
        theirs = h11_responses(raw, method, close=True)
        assert complaint(answer, theirs) is None, (raw, complaint(answer, theirs))

    end = time.perf_counter() + minutes * 60
    while time.perf_counter() < end:
        compare()
    print(f"{examples} put together by hypothesis in {minutes:g} minutes, no difference, no exception")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    print(f"seed {args.seed}")
    generated(args.messages, args.seed)
    fuzzed(args.minutes, args.seed)


if __name__ == "__main__":
    main()
