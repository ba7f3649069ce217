"""The rules of HTTP/1.1 framing, one by one, with the section that each comes from."""

import pytest

from clairvoyant_cli.http.fields import MAX_FIELDS
from clairvoyant_cli.http.framing import (
    CHUNKS_AT_ONCE,
    HEAD_LIMIT_BYTES,
    MAX_INFORMATIONAL,
    TRAILER_LIMIT_BYTES,
    End,
    Event,
    Malformed,
    RequestReader,
    ResponseReader,
    ResponseWriter,
    chunk,
)
from clairvoyant_cli.http.heads import TARGET_LIMIT_BYTES, RequestHead, ResponseHead, read_request_head


def request(*lines: str, target: str = "/a", method: str = "POST", version: str = "1.1") -> bytes:
    first = f"{method} {target} HTTP/{version}"
    return "\r\n".join([first, "Host: t", *lines]).encode("latin-1") + b"\r\n\r\n"


def head_of(raw: bytes) -> RequestHead:
    event = RequestReader().receive(raw)[0]
    assert isinstance(event, RequestHead), event
    return event


def refused(raw: bytes) -> Malformed:
    event = RequestReader().receive(raw)[-1]
    assert isinstance(event, Malformed), event
    return event


def reader_of_answers(raw_request: bytes = request(method="GET")) -> ResponseReader:
    reader = ResponseReader()
    reader.expect(head_of(raw_request))
    return reader


def body_of(events: list[Event]) -> bytes:
    return b"".join(event for event in events if isinstance(event, bytes))


# -- Connection (RFC 9110, 7.6.1) ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Content-Length", "Host"])
def test_connection_cannot_take_away_what_frames_or_routes(name: str) -> None:
    for options in (name, f"close, {name.lower()}", f"keep-alive ,{name}"):
        assert refused(request(f"Connection: {options}", "Content-Length: 0")).status == 400
    assert refused(request("Connection: transfer-encoding", "Transfer-Encoding: chunked")).status == 400
    assert refused(request("Connection: trailer", "Trailer: X")).status == 400


@pytest.mark.parametrize(
    "name",
    ["Authorization", "X-Api-Key", "Cookie", "Origin", "Sec-Fetch-Site", "Content-Type", "X-Forwarded-For"],
)
def test_connection_cannot_take_away_what_authenticates_or_guards(name: str) -> None:
    wire = head_of(request(f"Connection: {name}", f"{name}: kept")).encode(b"up")
    assert f"{name}: kept".encode() in wire


def test_connection_takes_away_what_is_between_the_two_of_them() -> None:
    wire = head_of(request("Connection: keep-alive, X-Mine", "X-Mine: 1", "Keep-Alive: 5", "X: 2")).encode(
        b"up"
    )
    assert wire == b"POST /a HTTP/1.1\r\nHost: up\r\nX: 2\r\n\r\n"


def test_an_answers_connection_cannot_take_away_its_length() -> None:
    reader = reader_of_answers()
    raw = b"HTTP/1.1 200 OK\r\nConnection: content-length, close\r\nContent-Length: 5\r\n\r\nriver"
    head, body, end = reader.receive(raw)
    assert isinstance(head, ResponseHead)
    assert (body, end, reader.reusable) == (b"river", End([]), False)
    assert b"Content-Length: 5" in head.encode()


# -- targets and Host (RFC 9112, 3.2) ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "method", "authority", "origin_form"),
    [
        ("/a?b=/c", "GET", b"t", b"/a?b=/c"),
        ("/a?b#c", "GET", b"t", b"/a?b#c"),
        ("http://u:1/a?b", "GET", b"u:1", b"/a?b"),
        ("HTTP://u", "GET", b"u", b"/"),
        ("http://u?x=/completion", "POST", b"u", b"/?x=/completion"),
        ("*", "OPTIONS", b"t", b"*"),
        ("u:443", "CONNECT", b"u:443", b""),
    ],
)
def test_what_is_asked_for(target: str, method: str, authority: bytes, origin_form: bytes) -> None:
    head = head_of(request(target=target, method=method))
    assert (head.authority, head.origin_form) == (authority, origin_form)
    assert head.path == origin_form.partition(b"?")[0].decode()


@pytest.mark.parametrize(
    "target",
    [
        "/a#b",
        "#",
        "*",
        "a",
        "u:443",
        "ftp://u/a",
        "http://",
        "http:///a",
        "http://me@u/a",
        "/\x7f",
        "/\t",
    ],
)
def test_targets_with_no_single_meaning_are_refused(target: str) -> None:
    assert refused(request(target=target, method="GET")).status == 400


def test_a_target_that_is_not_ascii_is_encoded() -> None:
    raw = "GET /é?q=漢&r=/%41 HTTP/1.1\r\nHost: t\r\n\r\n".encode()
    head = head_of(raw)
    assert head.origin_form == b"/%C3%A9?q=%E6%BC%A2&r=/%41"
    assert head_of(b"GET /\xe9 HTTP/1.1\r\nHost: t\r\n\r\n").path == "/%E9"


def test_one_host_and_only_one() -> None:
    assert refused(b"GET / HTTP/1.1\r\n\r\n").status == 400
    assert refused(request("Host: t")).status == 400
    assert head_of(b"GET / HTTP/1.0\r\n\r\n").authority == b""


# -- where a request ends (RFC 9112, 6.3) --------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["Content-Length: 5", "Content-Length: 5"], 400),
        (["Content-Length: 5, 5"], 400),
        (["Content-Length: +5"], 400),
        (["Content-Length: 5 5"], 400),
        (["Content-Length:"], 400),
        (["Content-Length: 9999999999999999999"], 400),
        (["Content-Length: 5", "Transfer-Encoding: chunked"], 400),
        (["Transfer-Encoding: gzip, chunked"], 501),
        (["Transfer-Encoding: chunked, chunked"], 501),
        (["Transfer-Encoding: identity"], 501),
        (["Transfer-Encoding:"], 501),
        (["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"], 501),
        (["Transfer-Encoding : chunked"], 400),
        (["X: a", " Transfer-Encoding: chunked"], 400),
        (["X: a\rContent-Length: 5"], 400),
        (["X: a\nContent-Length: 5"], 400),
        (["X: \x00"], 400),
        (["Expect: 200-ok"], 417),
    ],
)
def test_a_request_without_a_single_end_is_refused(lines: list[str], status: int) -> None:
    assert refused(request(*lines)).status == status


def test_http_1_0_knows_neither_chunks_nor_100() -> None:
    assert refused(request("Transfer-Encoding: chunked", version="1.0")).status == 400
    assert not head_of(request("Expect: 100-continue", "Content-Length: 1", version="1.0")).expects_continue


@pytest.mark.parametrize("version", ["2.0", "0.9", "3.7"])
def test_other_versions_are_refused(version: str) -> None:
    assert refused(request(version=version)).status == 505


@pytest.mark.parametrize(
    "wire",
    [
        b"5 \r\nriver\r\n",
        b"0x5\r\nriver\r\n",
        b"+5\r\nriver\r\n",
        b"5\r\nriverX\r\n",
        b"5\nriver\r\n",
        b"\r\n",
        b"f" * 17,
    ],
)
def test_chunks_without_a_single_end_are_refused(wire: bytes) -> None:
    raw = request("Transfer-Encoding: chunked") + wire + b"\r\n0\r\n\r\n"
    assert refused(raw).status == 400


def test_trailers_pass_but_for_those_that_frame_route_or_authenticate() -> None:
    lines = (
        b"X-Sum: 7\r\nContent-Length: 5\r\nHost: evil\r\nAuthorization: x\r\nTransfer-Encoding: chunked\r\n"
    )
    events = RequestReader().receive(request("Transfer-Encoding: chunked") + b"0\r\n" + lines + b"\r\n")
    assert events[-1] == End([(b"X-Sum", b"7")])


def test_one_request_at_a_time() -> None:
    reader = RequestReader()
    first, end = reader.receive(request(method="GET") + request(method="PUT", target="/next")[:20])
    assert isinstance(first, RequestHead)
    assert (end, len(reader.held)) == (End([]), 20)
    assert reader.next_request() == []
    [*_, last] = reader.receive(request(method="PUT", target="/next")[20:])
    assert last == End([])


# -- upgrades (RFC 9110, 7.8) --------------------------------------------------------------------------


@pytest.mark.parametrize("offer", ["h2c", "TLS/1.2", "h2c, tls/1.0", ""])
def test_an_upgrade_nobody_needs_is_dropped(offer: str) -> None:
    head = head_of(request("Connection: Upgrade", f"Upgrade: {offer}", method="GET"))
    assert head.upgrade == b""
    assert b"pgrade" not in head.encode(b"up")


@pytest.mark.parametrize("offer", ["websocket", "h2c, websocket"])
def test_an_upgrade_is_passed_on_without_a_body_only(offer: str) -> None:
    lines = ["Connection: Upgrade", f"Upgrade: {offer}"]
    assert head_of(request(*lines, method="GET")).upgrade == b"websocket"
    assert head_of(request(*lines, method="POST")).upgrade == b""
    assert head_of(request(*lines, method="GET", version="1.0")).upgrade == b""
    with_body = RequestReader().receive(request(*lines, "Content-Length: 5", method="GET") + b"river")
    assert isinstance(with_body[0], RequestHead)
    assert (with_body[0].upgrade, body_of(with_body)) == (b"", b"river")


@pytest.mark.parametrize("protocol", ["foo", ""])
def test_a_switch_to_what_was_not_offered_is_an_error(protocol: str) -> None:
    raw = f"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\nRAW".encode()
    offered = request("Connection: Upgrade", "Upgrade: websocket", method="GET")
    for asked in (request(method="GET"), offered):
        [event] = reader_of_answers(asked).receive(raw)
        assert isinstance(event, Malformed)


# -- where an answer ends ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\nX: a\r\n\t folded\r\n",
    ],
)
def test_an_answer_that_all_clients_read_is_read_and_ends_its_connection(head: str) -> None:
    reader = reader_of_answers(request(method="GET"))
    answer, *events = reader.receive(head.encode() + b"\r\n5 \r\nriver\r\n0\r\n\r\n")
    assert isinstance(answer, ResponseHead)
    assert (body_of([answer, *events]), reader.reusable) == (b"river", False)
    assert answer.get(b"content-length") is None
    assert answer.get(b"x") in (None, b"a folded")


@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize(
    "head",
    [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: a\r\nContent-Length: 5\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\r\nContent-Length: 5, 5\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\r\nContent-Length: +5\r\n\r\n",
        "HTTP/1.1 200 OK\nX: a\nContent-Length: 5\n\n",
        "HTTP/1.1 200 OK\r\nX: a\nContent-Length: 5\n\r\n",
        "HTTP/1.1 200 OK\r\nX : a\r\nContent-Length \t: 5\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\r\nTransfer-Encoding: identity\r\nContent-Length: 5\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX-Odd\r\nX Odd: 1\r\nX: a\r\nContent-Length: 5\r\n\r\n",
        "http/1.1 200 O\x01K\r\nX: a\r\nContent-Length: 5\r\n\r\n",
        "HTTP/1.1 200 OK\nX:\x01a\n folded\nContent-Length: 5\n\n",
    ],
)
def test_an_odd_head_that_usual_clients_read_is_passed_on_repaired(head: str, step: int) -> None:
    reader, raw = reader_of_answers(), head.encode() + b"river"
    events = [event for at in range(0, len(raw), step) for event in reader.receive(raw[at : at + step])]
    answer = events[0]
    assert isinstance(answer, ResponseHead)
    assert (body_of(events), events[-1]) == (b"river", End([]))
    first, *fields = answer.encode().split(b"\r\n")
    assert first.startswith(b"HTTP/1.1 200 O")
    assert {field.split(b" ")[0] for field in fields[:-2]} == {b"X:", b"Content-Length:"}
    assert b"identity" in head.encode() or not reader.reusable


@pytest.mark.parametrize(
    "head",
    [
        "HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n",
        "HTTP/1.1 200 OK\r\nX: a\rContent-Length: 5\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\nContent-Length: 5\r\n",
        "HTTP/1.1 200 OK\r\n: 5\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n",
        "HTTP/1.1 000 OK\r\n",
        "HTTP/1.1 099 OK\r\n",
        "HTTP/1.1 1000 OK\r\n",
        "HTTP/2.0 200 OK\r\n",
        "ICY 200 OK\r\n",
    ],
)
def test_an_answer_without_a_single_end_is_refused(head: str) -> None:
    [event] = reader_of_answers().receive(head.encode() + b"\r\n5\r\nriver\r\n0\r\n\r\n")
    assert isinstance(event, Malformed)


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
def test_answers_that_end_with_their_head(method: str, status: int) -> None:
    reader = reader_of_answers(request(method=method))
    events = reader.receive(b"HTTP/1.1 %d X\r\nContent-Length: 5\r\n\r\n" % status)
    assert events[1:] == [End([])]
    assert reader.reusable
    reader.receive(b"river")
    assert not reader.reusable


def test_a_flood_of_informational_answers_ends() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\n\r\n"
    reader = reader_of_answers()
    assert len(reader.receive(early * MAX_INFORMATIONAL)) == MAX_INFORMATIONAL
    assert isinstance(reader.receive(early)[-1], Malformed)


@pytest.mark.parametrize("state", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nri"])
def test_the_end_of_the_connection_is_no_end_of_an_answer(state: bytes) -> None:
    reader = reader_of_answers()
    reader.receive(state)
    assert isinstance(reader.close()[-1], Malformed)


def test_an_answer_that_ends_with_its_connection() -> None:
    reader = reader_of_answers()
    assert body_of(reader.receive(b"HTTP/1.1 200 OK\r\n\r\nriver")) == b"river"
    assert (reader.close(), reader.reusable) == ([End([])], False)


# -- limits --------------------------------------------------------------------------------------------


def test_nothing_is_held_without_end() -> None:
    endless_head = request(method="GET")[:-2] + b"X: " + b"y" * HEAD_LIMIT_BYTES
    assert refused(endless_head).status == 431
    assert refused(request(*["a:b"] * (MAX_FIELDS + 1))).status == 431
    assert refused(request(target="/" + "x" * TARGET_LIMIT_BYTES)).status == 414
    chunked = request("Transfer-Encoding: chunked")
    assert refused(chunked + b"2\r\nhi\r\n0\r\nX: " + b"t" * TRAILER_LIMIT_BYTES).status == 431
    assert refused(chunked + b"2;" + b"e" * 5000).status == 400
    assert refused(chunked + (b"1;" + b"e" * 200 + b"\r\nx\r\n") * 200).status == 400
    assert refused(request("Connection: " + "a," * 100)).status == 431
    reader = reader_of_answers()
    assert isinstance(reader.receive(b"HTTP/1.1 200 OK\r\nX: " + b"y" * HEAD_LIMIT_BYTES)[-1], Malformed)


@pytest.mark.parametrize("raw", [b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\nHost: t\n\n", b"\x00", b"\r\n\r"])
def test_what_can_never_become_a_request_is_refused_at_once(raw: bytes) -> None:
    assert refused(raw).status == 400


def test_a_packet_of_many_chunks_is_read_in_parts() -> None:
    reader = RequestReader()
    reader.receive(request("Transfer-Encoding: chunked"))
    count = 3 * CHUNKS_AT_ONCE + 7
    events = reader.receive(b"1\r\nx\r\n" * count + b"0\r\n\r\n")
    assert (body_of(events), reader.pending) == (b"x" * CHUNKS_AT_ONCE, True)
    while reader.pending:
        events += reader.receive(b"")
    assert (body_of(events), events[-1]) == (b"x" * count, End([]))


# -- writing to the client -------------------------------------------------------------------------------


def answer_to(raw: bytes, head: ResponseHead) -> tuple[ResponseWriter, bytes]:
    """Begin an answer to a request; return the writer and the head on the wire."""
    writer = ResponseWriter(head_of(raw))
    return writer, writer.head(head)


def test_an_answer_of_unknown_length_to_either_version() -> None:
    chunked = ResponseHead(200, b"OK", [(b"Transfer-Encoding", b"chunked")], chunked=True)
    writer, wire = answer_to(request(method="GET"), chunked)
    assert wire == b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert (writer.body(b"river"), writer.end([]), writer.cut_needs_reset) == (
        chunk(b"river"),
        b"0\r\n\r\n",
        False,
    )
    writer, wire = answer_to(request(method="GET", version="1.0"), chunked)
    assert wire == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    assert (writer.body(b"river"), writer.end([(b"X", b"y")]), writer.cut_needs_reset) == (
        b"river",
        b"",
        True,
    )


def test_an_empty_piece_does_not_end_a_chunked_body() -> None:
    writer, _ = answer_to(request(method="GET"), ResponseHead(200, b"OK"))
    assert writer.body(b"") == b""


def test_an_http_1_0_client_gets_no_informational_answer() -> None:
    early = ResponseHead(103, b"Early Hints")
    assert ResponseWriter(head_of(request(method="GET", version="1.0"))).informational(early) == b""
    assert ResponseWriter(head_of(request(method="GET"))).informational(early) != b""


def test_no_body_goes_out_where_none_may() -> None:
    writer, wire = answer_to(
        request(method="GET"), ResponseHead(204, b"No", [(b"Content-Length", b"5")], length=5)
    )
    assert (wire, writer.body(b"river")) == (b"HTTP/1.1 204 No\r\n\r\n", b"")


def test_a_head_with_other_fields_has_none_of_those_before() -> None:
    head = read_request_head(b"POST / HTTP/1.1\r\nHost: a\r\nDigest: x\r\nContent-Length: 3\r\n")
    head.replace([field for field in head.headers if field[0] != b"Digest"])
    assert head.get(b"digest") is None
    assert b"Digest" not in head.encode(b"b")
