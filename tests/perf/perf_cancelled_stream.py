"""First token of a request after a cancelled stream, direct and proxied in turns, as autocomplete asks.

python tests/perf/perf_cancelled_stream.py http://127.0.0.1:8080 [--model NAME] [--rounds 40]

It starts a proxy of its own before the server. Each round streams an answer until its third piece, closes
the connection, and asks at once for the next, on another prompt. Goal: proxied within 30 ms of direct at the
median. A busy machine makes both slower; the difference is what counts.
"""

import argparse
import asyncio
import json
import statistics
import time
from urllib.parse import urlsplit

import predictor
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.proxy.daemon import running_daemon

PIECES = 3


async def first_piece_s(url: str, model: str, prompt: str, *, leave_after: int) -> float:
    """Return the seconds until a streamed answer's first piece; leave after some, by closing."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    body = {"messages": [{"role": "user", "content": prompt}], "stream": True, "max_tokens": 400}
    data = json.dumps(body | ({"model": model} if model else {})).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
    begun_s = time.perf_counter()
    writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data)
    first_s, pieces = 0.0, 0
    while pieces < leave_after:
        line = await reader.readline()
        if not line:
            raise SystemExit(f"{url} ended the answer after {pieces} pieces; give a --model it knows")
        if b'"content":"' in line and b'"content":""' not in line:
            first_s = first_s or time.perf_counter() - begun_s
            pieces += 1
    writer.transport.abort()
    return first_s


async def main() -> None:
    """Measure, and print the medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--model", default="")
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    config = ServeConfig(backend=args.url, listen="127.0.0.1:0")
    async with running_daemon(config, predictor.load()) as daemon:
        ways = {"direct": args.url, "proxied": daemon.base_url}
        took_s: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(args.rounds):
            for name, url in list(ways.items())[:: 1 if number % 2 else -1]:
                await first_piece_s(url, args.model, f"Tell me about river {number}.", leave_after=PIECES)
                prompt = f"Tell me about mountain {number}."
                took_s[name].append(await first_piece_s(url, args.model, prompt, leave_after=1))
                await asyncio.sleep(0.25)  # the next key
    for name, times_s in took_s.items():
        cuts = statistics.quantiles(times_s, n=20)
        p50_ms, p95_ms = statistics.median(times_s) * 1e3, cuts[-1] * 1e3
        print(f"{name:8} first token P50 {p50_ms:7.1f} ms, P95 {p95_ms:7.1f} ms")
    more_s = statistics.median(took_s["proxied"]) - statistics.median(took_s["direct"])
    print(f"proxied - direct at the median: {more_s * 1e3:+.1f} ms")


if __name__ == "__main__":
    asyncio.run(main())
