"""`clairvoyant bench` from end to end, on the simulated backend and a real llama.cpp."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from clairvoyant_lab.asgi_server import serve_app
from clairvoyant_lab.commands.bench import command
from click.testing import CliRunner, Result

from clairvoyant_cli.errors import ClairvoyantError
from tests.fakes.llamacpp_server import LlamaServer
from tests.fakes.replay_backend import Engine, Replay, Speed

REPLAY = ("--backend", "replay", "--speedup", "1000", "--runs", "1")


def run(*words: str) -> Result:
    return CliRunner().invoke(command, words)


def findings(*words: str) -> dict[str, Any]:
    done = run(*words, "--json")
    assert done.exit_code == 0, f"{done.output}{done.exception!r}"
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def arms(said: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["arm"]: each["figures"]["all"] for each in said["arms"]}


def test_a_burst_on_the_simulated_backend_answers_everything_under_every_arm() -> None:
    said = findings("burst", *REPLAY, "--requests", "8")
    assert list(arms(said)) == ["direct", "fcfs", "boost:36", "sjf:10.5", "oracle"]
    for figures in arms(said).values():
        assert (figures["answered"]["mean"], figures["failed"]["mean"]) == (8, 0)
    notes = " ".join(said["notes"])
    assert "simulated" in notes
    assert "does not see that limit" in notes
    assert "project's own" in notes


def test_arms_know_classes_or_lengths() -> None:
    said = findings(
        "burst", *REPLAY, "--requests", "20", "--arm", "fcfs@classes", "--arm", "oracle", "--arm", "direct"
    )
    # Classes are known for certain; real lengths of short and long overlap, but for few pairs.
    assert arms(said)["fcfs@classes"]["ranking"]["mean"] == 1.0
    assert arms(said)["oracle"]["ranking"]["mean"] > 0.9
    assert "ranking" not in arms(said)["direct"]


async def test_real_answers_end_at_their_limit_and_the_oracle_knows_the_lengths(
    tmp_path: Path,
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    limits = [{"prompt": "Ramble.", "max_tokens": 50}, {"prompt": "One word, please.", "max_tokens": 90}]
    limits += [{"prompt": text, "max_tokens": 60, "class": "long"} for text in ("Tell a tale.", "More.")]
    prompts.write_text("\n".join(json.dumps(each) for each in limits))
    # One answer ends before its limit: taking the limit for its length orders it wrongly.
    engine = Engine(
        speed=Speed(decode_tokens_per_s=10_000),
        answer_tokens=lambda prompt, rng: 9 if "One" in prompt else 999,
    )
    async with serve_app(Replay(engine).app) as url:
        words = ("--backend", url, "--prompts", str(prompts), "--arm", "fcfs", "--arm", "oracle")
        said = await asyncio.to_thread(findings, "burst", *words, "--runs", "1", "--requests", "4")
    for each in said["arms"]:
        assert each["figures"]["short"]["tokens mean"]["mean"] == (50 + 9) / 2
        assert each["figures"]["long"]["tokens mean"]["mean"] == 60
    assert arms(said)["oracle"]["ranking"]["mean"] == 1.0


@pytest.mark.real
def test_set_lengths_on_a_real_server_are_hidden_from_predictions(llama: LlamaServer, tmp_path: Path) -> None:
    lengths = {"Is 1013 a prime number?": 9, "Name a colour.": 12, "Tell a tale.": 120, "Explain tides.": 100}
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        "\n".join(
            json.dumps({"prompt": p, "tokens": n, "class": "long" if n > 50 else "short"})
            for p, n in lengths.items()
        )
    )
    said = findings(
        *("burst", "--backend", llama.base_url, "--set-lengths", "--runs", "1", "--requests", "2"),
        *("--prompts", str(prompts), "--arm", "direct", "--arm", "bounded", "--arm", "oracle"),
    )
    assert [figures["failed"]["mean"] for figures in arms(said).values()] == [0, 0, 0], said["notes"]
    assert len({figures["tokens mean"]["mean"] for figures in arms(said).values()}) == 1
    assert arms(said)["oracle"]["ranking"]["mean"] == 1.0
    assert said["about"]["backend"].startswith("llamacpp")


@pytest.mark.parametrize(
    "words",
    [
        ("burst", "--backend", "http://127.0.0.1:1"),
        ("burst", "--backend", "replay", "--arm", "sfj"),
        ("burst", "--virtual-time"),
        ("burst", "--backend", "replay", "--prompts", "missing.jsonl"),
    ],
)
def test_bench_errors_are_one_line(words: tuple[str, ...]) -> None:
    done = run(*words, "--quick")
    assert isinstance(done.exception, ClairvoyantError)
    assert "\n" not in str(done.exception)


def test_a_report_of_several_utilisations_draws_the_gain(tmp_path: Path) -> None:
    words = ("poisson", "--backend", "replay", "--virtual-time", "--runs", "1", "--requests", "10")
    arms = ("--arm", "fcfs", "--arm", "bounded@classes:36", "--arm", "oracle")
    said = findings(*words, *arms, "--rho", "0.6", "--rho", "0.9", "--report", str(tmp_path / "r.md"))
    assert {each["load"] for each in said["arms"]} == {"rho 0.6", "rho 0.9"}
    drawn = (tmp_path / "r.svg").read_text()
    assert ">bounded@classes:36<" in drawn
    assert "## rho 0.9" in (tmp_path / "r.md").read_text()


def test_answers_are_cut_on_a_server_that_resumes_them() -> None:
    words = ("poisson", "--backend", "replay", "--virtual-time", "--runs", "1", "--requests", "20")
    said = findings(*words, "--seed", "3", "--arm", "fcfs", "--arm", "srpt@lengths:35")
    measured = arms(said)
    figures = measured["srpt@lengths:35"]
    assert figures["failed"]["mean"] == 0
    assert figures["cuts"]["mean"] == figures["resumes"]["mean"] > 0
    assert figures["busy"]["mean"] == pytest.approx(measured["fcfs"]["busy"]["mean"], rel=0.02)
    assert "cuts" not in measured["fcfs"]
    (cut,) = (each for each in said["arms"] if each["arm"] != "fcfs")
    assert cut["changes"]["short"]["sojourn p50"]["mean"] < 0
    assert "cut at a word's end" in " ".join(said["notes"])


async def test_nothing_is_cut_without_proof_that_it_resumes() -> None:
    engine = Engine(speed=Speed(decode_tokens_per_s=10_000), answer_tokens=lambda prompt, rng: len(prompt))
    async with serve_app(Replay(engine).app) as url:
        words = ("burst", "--backend", url, "--runs", "1", "--requests", "4", "--arm", "srpt", "--json")
        done = await asyncio.to_thread(run, *words)
    assert "clairvoyant calibrate" in done.stderr
    assert json.loads(done.stdout)["arms"][0]["figures"]["all"]["cuts"]["mean"] == 0
