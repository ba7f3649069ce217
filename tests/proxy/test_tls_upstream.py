"""A server behind TLS, whose certificate is in the file that SSL_CERT_FILE names."""

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from tests.fakes.raw_http import get, post, raw_client
from tests.fakes.scripted_upstream import Conversation, answer, scripted
from tests.fakes.serving import serving

CHAT = post("/api/chat", b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "hi"}]}')
LINES = [b'{"message": {"content": "a"}, "done": false}\n', b'{"message": {"content": "b"}, "done": true}\n']

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A self-signed certificate of localhost, with its key."""
    path = tmp_path / "certificate.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    about = ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(
        [*make, *about, "-keyout", path, "-out", tmp_path / "own.pem"], check=True, capture_output=True
    )
    path.write_text(path.read_text() + (tmp_path / "own.pem").read_text())
    return path


def context_of(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


async def script(conversation: Conversation) -> None:
    """Stream an answer to each chat, and answer the rest whole."""
    while True:
        request = await conversation.request()
        assert request.value("host") == b"localhost:%d" % conversation.writer.get_extra_info("sockname")[1]
        if request.target != b"/api/chat":
            conversation.send(answer(b'{"models": []}'))
            continue
        conversation.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        conversation.send(*(b"%x\r\n%b\r\n" % (len(line), line) for line in LINES), b"0\r\n\r\n")


async def test_requests_reach_a_server_behind_tls_from_the_queue_and_past_it(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with (
        scripted(script, tls=context_of(certificate)) as upstream,
        serving(f"https://localhost:{upstream.port}") as daemon,
        raw_client(daemon.base_url) as client,
    ):
        for _ in range(3):
            reply = await client.ask(CHAT)
            assert (reply.status, reply.body) == (200, b"".join(LINES))
            assert (await client.ask(get("/api/tags"))).body == b'{"models": []}'
        assert daemon.journal.counts["completed"] == 3


async def test_a_certificate_that_nobody_vouches_for_is_refused(certificate: Path) -> None:
    async with (
        scripted(script, tls=context_of(certificate)) as upstream,
        serving(f"https://localhost:{upstream.port}", outage_grace=0) as daemon,
        raw_client(daemon.base_url) as client,
    ):
        reply = await client.ask(CHAT)
        assert reply.status == 503
        assert b"TLS failed: CERTIFICATE_VERIFY_FAILED" in reply.body
