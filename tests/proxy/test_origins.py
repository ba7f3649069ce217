"""Which Hosts are answered to, and pages of which origins may send requests."""

import pytest

from clairvoyant_cli.http.fields import Fields, Header
from clairvoyant_cli.http.heads import RequestHead
from clairvoyant_cli.proxy.access.origins import AllowedOrigins, origin_patterns, own_names

WALLS = AllowedOrigins(
    frozenset({"box.example"}), origin_patterns(["https://chat.example", "chrome-extension://*"])
)


def head(*headers: Header, method: bytes = b"POST", host: bytes | None = b"localhost:8080") -> RequestHead:
    fields = Fields([*headers, *([] if host is None else [(b"Host", host)])])
    return RequestHead(method, b"/api/chat", fields, http10=host is None)


@pytest.mark.parametrize(
    ("host", "by_programs", "by_pages"),
    [
        ("localhost", True, True),
        ("LOCALHOST:8080", True, True),
        ("127.0.0.1:8080", True, True),
        ("192.168.1.5", True, True),
        ("[::1]:8080", True, True),
        ("[::ffff:127.0.0.1]", True, True),
        ("box.example:8080", True, True),
        ("", True, False),
        ("x", True, False),
        ("ollama_proxy:8080", True, False),
        ("2130706433", True, False),
        ("app.localhost", True, False),
        ("box.local", True, False),
        ("host.docker.internal:8080", True, False),
        ("nas.home.arpa", True, False),
        ("proxy.test", True, False),
        ("evil.example", False, False),
        ("localhost.evil.example", False, False),
        ("127.0.0.1.evil.example:80", False, False),
        ("evil.example:127.0.0.1", False, False),
        ("box.example.evil.example", False, False),
        ("local", True, False),
        ("evillocal.example", False, False),
        ("localhost.", False, False),
        ("localhost@evil.example", False, False),
        ("localhost@evil", False, False),
        ("evil.example\tlocalhost", False, False),
        ("[127.0.0.1", False, False),
        ("[127.0.0.1]", False, False),
        ("127.0.0.1]", False, False),
        ("::1", False, False),
        ("[::1]x", False, False),
        ("localhost:80:80", False, False),
        ("localhost:\u0668", False, False),
        ("0x7f.1", False, False),
        ("http://localhost", False, False),
    ],
)
def test_hosts(host: str, by_programs: bool, by_pages: bool) -> None:
    """What a neighbour on the network may claim is a name for programs, and for requests to models alone."""
    asked = head(host=host.encode()) if host else head(host=None)
    origin = (b"Origin", f"http://{host}".encode())
    assert (WALLS.objection(asked, to_models=True) is None) is by_programs
    assert (WALLS.objection(asked) is None) is by_pages
    for sent in ([(b"User-Agent", b"Mozilla/5.0")], [(b"Sec-Fetch-Site", b"same-origin")], [origin]):
        for to_models in (True, False):
            asked = head(*sent, host=host.encode())
            of_this_machine = to_models and ".localhost" in host and by_programs
            assert (WALLS.objection(asked, to_models=to_models) is None) is (by_pages or of_this_machine)


@pytest.mark.parametrize(
    ("name", "open_to_all", "with_secret"),
    [
        ("box.example", {"box.example"}, {"box.example", "box.local"}),
        ("Box", set(), {"box", "box.local"}),
        ("box.local", set(), {"box.local"}),
        ("wpad.internal", set(), {"wpad.internal", "wpad.local"}),
    ],
)
def test_our_own_name_is_ours_unless_a_neighbour_may_claim_it(
    name: str, open_to_all: set[str], with_secret: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: name)
    assert own_names(asks_for_secret=False) == open_to_all
    assert own_names(asks_for_secret=True) == with_secret


def test_a_request_without_a_host_is_answered() -> None:
    assert WALLS.objection(head(host=None), to_models=True) is None


def test_another_host_is_refused_with_the_flag_that_lets_it_in() -> None:
    assert WALLS.objection(head(host=b"evil.example:80"), to_models=True) == (
        "requests for Host 'evil.example:80' are refused; allow them with --allow-host evil.example"
    )
    told = WALLS.objection(head(host=b"\x1b[31m.evil" + b"x" * 5000), to_models=True)
    assert told is not None
    assert told.isprintable()
    assert len(told) < 300


@pytest.mark.parametrize(
    ("origin", "accepted"),
    [
        ("http://localhost:8080", True),
        ("https://localhost:8080", True),
        ("http://localhost:3000", True),
        ("https://127.0.0.1", True),
        ("http://127.1.2.3:9", True),
        ("http://[::1]:5173", True),
        ("http://0.0.0.0:3000", True),
        ("http://LOCALHOST:3000", True),
        ("app://obsidian.md", True),
        ("file://", True),
        ("tauri://localhost", True),
        ("vscode-webview://1abc", True),
        ("vscode-file://vscode-app", True),
        ("https://chat.example", True),
        ("chrome-extension://abcdef", True),
        ("127.0.0.1", True),  # no page sends that
        ("null", False),
        ("http://evil.example", False),
        ("http://chat.example", False),
        ("https://chat.example:444", False),
        ("https://chat.example.evil.example", False),
        ("https://xchat.example", False),
        ("http://tauri.localhost", True),
        ("https://app.localhost:3000", True),
        ("http://xlocalhost", False),
        ("http://localhost.evil.example", False),
        ("http://192.168.1.5", False),
        ("http://127.0.0.1.evil.example", False),
        ("http://localhost@evil.example", False),
        ("ftp://localhost", False),
        ("moz-extension://abcdef", False),
        ("http://app://", False),
    ],
)
def test_origins(origin: str, accepted: bool) -> None:
    told = WALLS.objection(head((b"Origin", origin.encode())), to_models=True)
    assert (told is None) is accepted
    if told is not None:
        assert told.endswith(f"allow them with --allow-origin {origin}")


def test_a_page_of_the_host_that_was_asked_for_is_ours() -> None:
    own, other = (b"Origin", b"http://box.example:8080"), (b"Origin", b"http://box.example:3000")
    assert WALLS.objection(head(own, host=b"box.example:8080"), to_models=True) is None
    assert WALLS.objection(head(other, host=b"box.example:8080"), to_models=True) is not None
    assert WALLS.objection(head((b"Origin", b"http://"), host=None), to_models=True) is not None


def fetched(mode: bytes, dest: bytes, site: bytes = b"cross-site") -> list[Header]:
    """Return the headers that a browser adds (Fetch Metadata)."""
    return [(b"Sec-Fetch-Site", site), (b"Sec-Fetch-Mode", mode), (b"Sec-Fetch-Dest", dest)]


@pytest.mark.parametrize(
    ("method", "headers", "accepted"),
    [
        (b"GET", fetched(b"navigate", b"document"), True),
        (b"HEAD", fetched(b"navigate", b"document"), True),
        (b"POST", fetched(b"navigate", b"document"), False),
        (b"GET", fetched(b"navigate", b"iframe"), False),
        (b"GET", fetched(b"no-cors", b"image"), False),
        (b"GET", fetched(b"no-cors", b"document"), False),
        (b"GET", [(b"Sec-Fetch-Site", b"Cross-Site")], False),
        (b"GET", fetched(b"no-cors", b"image", b"same-origin"), True),
        (b"GET", fetched(b"no-cors", b"image", b"same-site"), True),
        (b"GET", fetched(b"navigate", b"document", b"none"), True),
        (b"POST", [*fetched(b"cors", b"empty"), (b"Origin", b"http://localhost:3000")], True),
        (b"POST", [*fetched(b"cors", b"empty"), (b"Origin", b"")], False),
    ],
)
def test_what_a_page_of_another_site_fetches(method: bytes, headers: list[Header], accepted: bool) -> None:
    told = WALLS.objection(head(*headers, method=method), to_models=True)
    assert (told is None) is accepted
    assert told is None or "--allow-origin" in told


def test_every_origin_must_be_let_in() -> None:
    """A browser sends one; what two parsers could read differently is not taken by its first."""
    ours, evil = (b"Origin", b"http://localhost:3000"), (b"origin", b"https://evil.example")
    assert WALLS.objection(head(ours, ours), to_models=True) is None
    for fields in ((ours, evil), (evil, ours), ((b"Origin", b""), evil)):
        assert "evil.example" in (WALLS.objection(head(*fields), to_models=True) or "")


@pytest.mark.parametrize(
    ("fields", "ours"),
    [
        ([], True),
        ([b"http://localhost:8080"], True),
        ([b"https://LOCALHOST:8080"], True),
        ([b"http://localhost"], False),
        ([b"http://localhost:3000"], False),
        ([b"http://localhost:8080.evil.example"], False),
        ([b"null"], False),
        ([b""], False),
        ([b"localhost:8080"], False),
        ([b"://localhost:8080"], False),
        ([b"evil://localhost:8080"], False),
        ([b"http://evil://localhost:8080"], False),
        ([b"http://localhost:8080 http://evil.example"], False),
        ([b"http://localhost:8080, http://evil.example"], False),
        ([b"http://localhost:8080", b"http://evil.example"], False),
        ([b"http://localhost:8080", b"http://localhost:8080"], False),
    ],
)
def test_our_own_page_has_exactly_one_origin(fields: list[bytes], ours: bool) -> None:
    assert (WALLS.objection(head(*((b"Origin", value) for value in fields))) is None) is ours


@pytest.mark.parametrize(
    ("method", "headers", "ours"),
    [
        (b"GET", fetched(b"no-cors", b"image"), False),
        (b"GET", fetched(b"no-cors", b"image", b"same-site"), False),
        (b"GET", fetched(b"navigate", b"iframe"), False),
        (b"GET", fetched(b"cors", b"empty", b"same-origin"), True),
        (b"GET", fetched(b"navigate", b"document", b"none"), True),
        (b"GET", fetched(b"navigate", b"document"), True),  # a link that the user followed
        (b"POST", fetched(b"navigate", b"document"), False),
        (b"GET", [*fetched(b"no-cors", b"image"), (b"Origin", b"http://localhost:8080")], False),
    ],
)
def test_a_page_without_an_origin_is_told_by_what_the_browser_says(
    method: bytes, headers: list[Header], ours: bool
) -> None:
    assert (WALLS.objection(head(*headers, method=method)) is None) is ours


def test_a_star_lets_every_page_in() -> None:
    walls = AllowedOrigins(origins=origin_patterns(["*"]))
    assert walls.objection(head((b"Origin", b"null")), to_models=True) is None
    assert walls.objection(head((b"Origin", b"https://evil.example")), to_models=True) is None
    assert walls.objection(head(*fetched(b"no-cors", b"image"), method=b"GET"), to_models=True) is None
    assert walls.objection(head(host=b"evil.example"), to_models=True) is not None


@pytest.mark.parametrize(
    ("pattern", "origin", "matches"),
    [
        ("https://*.example", "https://a.b.example", True),
        ("https://*.example", "https://example", False),
        ("http://box:*", "http://box:3000", True),
        ("http://b?x", "http://bix", False),
        ("http://[::2]:80", "http://[::2]:80", True),
        ("HTTPS://Chat.Example", "https://chat.example", True),
        ("null", "null", True),
    ],
)
def test_patterns(pattern: str, origin: str, matches: bool) -> None:
    walls = AllowedOrigins(origins=origin_patterns([pattern]))
    assert (walls.objection(head((b"Origin", origin.encode())), to_models=True) is None) is matches


@pytest.mark.parametrize("text", ["chat.example", "https://", "https://a/b", "", "http://a b", "://x"])
def test_what_no_page_can_have_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        origin_patterns([text])
