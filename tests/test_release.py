"""What a release is made of: the manifests of package managers, and the containers of compose.yaml."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import click

from clairvoyant_cli.config import load_serve_config
from clairvoyant_cli.http.fields import Fields
from clairvoyant_cli.http.heads import RequestHead
from clairvoyant_cli.main import cli
from clairvoyant_cli.proxy.access.clients import parse_clients

ROOT = Path(__file__).resolve().parents[1]


def manifests(folder: Path) -> "subprocess.CompletedProcess[str]":
    """Write the manifests of the release in a folder."""
    script = ROOT / ".github" / "release" / "manifests.py"
    arguments = [sys.executable, str(script), str(folder), "--url", "https://host/owner/clairvoyant/"]
    return subprocess.run(arguments, capture_output=True, text=True, check=False)


def test_manifests_name_the_released_files_and_their_hashes(tmp_path: Path) -> None:
    wheel = "clairvoyant_cli-1.2.3-py3-none-any.whl"
    zips = {arch: f"clairvoyant-1.2.3-windows-{arch}.zip" for arch in ("amd64", "arm64")}
    for name in (wheel, "requirements.txt", *zips.values()):
        (tmp_path / name).write_text(name)
    done = manifests(tmp_path)
    assert done.returncode == 0, done.stderr
    formula = (tmp_path / "clairvoyant.rb").read_text()
    files = "https://host/owner/clairvoyant/releases/download/v1.2.3"
    for name in (wheel, "requirements.txt"):
        digest = hashlib.sha256(name.encode()).hexdigest()
        assert re.search(rf'url "{files}/{re.escape(name)}".*?sha256 "{digest}"', formula, re.DOTALL), name
    installer = (tmp_path / "winget" / "owner.Clairvoyant.installer.yaml").read_text()
    for name in zips.values():
        digest = hashlib.sha256(name.encode()).hexdigest().upper()
        assert f"InstallerUrl: {files}/{name}\n  InstallerSha256: {digest}\n" in installer
    written = sorted(each.name for each in (tmp_path / "winget").iterdir())
    assert written == [f"owner.Clairvoyant{kind}.yaml" for kind in (".installer", ".locale.en-US", "")]


def test_manifests_need_both_zips(tmp_path: Path) -> None:
    for name in ("clairvoyant_cli-1.2.3-py3-none-any.whl", "requirements.txt"):
        (tmp_path / name).write_text(name)
    done = manifests(tmp_path)
    assert done.returncode == 2
    assert "needs one zip for amd64 and one for arm64" in done.stderr


def test_the_proxy_of_compose_tells_users_apart_and_keeps_its_key(tmp_path: Path) -> None:
    compose = (ROOT / "compose.yaml").read_text()
    found = re.search(r"  clairvoyant:\n.*?- \|\n(.*?)    volumes:", compose, re.DOTALL)
    assert found is not None
    script = found[1].replace("$$", "$")
    for folder in ("data", "clients", "bin"):
        (tmp_path / folder).mkdir()
        script = script.replace(f"/{folder}/", f"{tmp_path}/{folder}/")
    program = tmp_path / "bin" / "clairvoyant"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o700)
    environment = {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    starts = [
        subprocess.run(["sh", "-euc", script], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert starts[0].stdout == starts[1].stdout
    _, *flags = starts[0].stdout.splitlines()
    serve = cli.get_command(click.Context(cli), "serve")
    assert serve is not None
    params = serve.make_context("serve", flags).params
    assert params["listen"] == "0.0.0.0:7117"
    (server,) = load_serve_config({}, file=params["config_file"]).backends
    assert (server.url, server.self_test) == ("http://ollama:11434", True)

    key = (tmp_path / "clients" / "webui.key").read_text().strip()
    path = tmp_path / "clients" / "clients.toml"
    assert path.stat().st_mode & 0o077 == 0
    clients = parse_clients(path.read_text(), str(path))
    owner = clients.owner_of(key.encode())
    assert owner is not None
    fields = Fields([(b"Host", b"localhost"), (b"X-OpenWebUI-User-Email", b"ann@example.org")])
    head = RequestHead(b"POST", b"/v1/chat/completions", fields, http10=False)
    assert clients.user_of(owner, head) == "webui/ann@example.org"
