"""An upstream that costs next to nothing: an SSE answer of `max_tokens` events at a given rate.

    python tests/perf/fast_upstream.py TOKENS_PER_S [closing]     (prints its address)

With `closing` it ends the connection of a short answer a millisecond later without having said so, as
llama.cpp does. A hand-made server, so that what a benchmark measures is the proxy and not the server behind
it.
"""

import asyncio
import json
import sys

import httptools
import uvloop

DELTA = b'{"index":0,"delta":{"content":"word "}}'
EVENT = b'data: {"id":"c","object":"chat.completion.chunk","choices":[%b]}\n\n' % DELTA
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
DONE = b"data: [DONE]\n\n"
END = b"%x\r\n%b\r\n0\r\n\r\n" % (len(DONE), DONE)
PROPS = b'{"total_slots": 1, "build_info": "fast"}'


class Connection(asyncio.Protocol):
    rate = 2000.0
    closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""
        self.url = b""

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url = url

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        body, self.body = self.body, b""
        if self.parser.get_method() == b"GET":
            found = self.url in (b"/props", b"/health", b"/slots")
            answer = b"[]" if self.url == b"/slots" else PROPS
            status = b"200 OK" if found else b"404 Not Found"
            self.transport.write(
                b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                % (status, len(answer), answer)
            )
            return
        tokens = int(json.loads(body).get("max_tokens") or 16)
        self.transport.write(HEAD + CHUNK)
        if tokens <= 20:
            self.transport.write(CHUNK * (tokens - 1) + END)
            if self.closing:
                asyncio.get_running_loop().call_later(0.001, self.transport.close)
            return
        loop = asyncio.get_running_loop()
        self.sent, self.tokens, self.start = 1, tokens, loop.time()
        loop.call_later(0.001, self.more)

    def more(self) -> None:
        loop = asyncio.get_running_loop()
        due = min(self.tokens, int((loop.time() - self.start) * self.rate) + 1)
        for _ in range(due - self.sent):
            self.transport.write(CHUNK)
        self.sent = due
        if due == self.tokens:
            self.transport.write(END)
        elif not self.transport.is_closing():
            loop.call_later(0.0005, self.more)


async def main() -> None:
    Connection.rate = float(sys.argv[1])
    Connection.closing = "closing" in sys.argv
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=2048)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


uvloop.run(main())
