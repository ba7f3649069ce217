"""predict, evaluate and train as a user meets them."""

import gzip
import json
from pathlib import Path

import pytest
from clairvoyant_lab.commands import evaluate, train
from clairvoyant_lab.training.card_writing import CARD_TEXT, card_text, file_hashes, measures
from click.testing import CliRunner, Result

import predictor
from clairvoyant_cli.commands import predict
from clairvoyant_cli.errors import ClairvoyantError
from predictor.card import read_card
from predictor.loading import MODELS
from predictor.record import PromptView


def _invoke(command: object, *arguments: object, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(
        command,  # type: ignore[arg-type]
        [str(argument) for argument in arguments],
        input=stdin,
        catch_exceptions=True,
    )


def _logs(path: Path, count: int = 240) -> Path:
    rows = [
        {"prompt": f"Write an essay about item {number}", "output_tokens": 900 + number}
        if number % 3 == 0
        else {"prompt": f"Who is number {number}?", "output_tokens": 20 + number * (number % 3 - 1)}
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_predict_prints_one_json_object() -> None:
    result = _invoke(predict.command, "Write a story", "--json")
    fields = json.loads(result.stdout)
    assert fields["length_class"] in ("short", "medium", "long")
    assert fields["reasons"]
    assert "memo" not in fields


def test_predict_reads_bytes_that_are_not_utf8_from_standard_input() -> None:
    result = _invoke(predict.command, stdin=b"caf\xe9 \xff")
    assert result.exit_code == 0
    assert "expected" in result.stdout


def test_evaluate_reports_what_it_promises(tmp_path: Path) -> None:
    plain = _logs(tmp_path / "a.jsonl")
    zipped = tmp_path / "b.jsonl.gz"
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    result = _invoke(evaluate.command, plain, zipped, "--json")
    first, second = json.loads(result.stdout)
    assert {**first, "file": ""} == {**second, "file": ""}
    assert first["file"] == str(plain)
    assert (first["n"], first["n_long"]) == (240, 80)
    assert first["ranking_accuracy"] > 0.95
    assert {"n_short", "kendall_tau_b", "class_accuracy"} <= first.keys()


def test_evaluate_tells_how_near_lengths_stated_in_words_are(tmp_path: Path) -> None:
    path = tmp_path / "stated.jsonl"
    words = range(200, 1000, 40)
    lines = [{"prompt": f"Write {count} words on rain", "output_tokens": 2.4 * count} for count in words]
    lines.append({"prompt": "Who is the king?", "output_tokens": 20})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (alone,), (both,) = (
        json.loads(_invoke(evaluate.command, path, "--json", *options).stdout)
        for options in ([], ["--semantic"])
    )
    assert alone["n_stated"] == both["n_stated"] == len(words)
    # A word is 1.3 tokens or so; these answers are nearly twice as long as they were asked for.
    assert 0.3 < alone["stated_error"] < 0.6
    assert both["calibration_error"] != alone["calibration_error"]


def _strictly(text: str) -> list[dict[str, float | None]]:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    rows: list[dict[str, float | None]] = json.loads(text, parse_constant=refuse)
    return rows


@pytest.mark.parametrize(
    ("lengths", "missing"),
    [
        ([3, 4], {"ranking_accuracy", "tied_share"}),
        ([900, 2000], {"ranking_accuracy", "tied_share"}),
        ([3], {"ranking_accuracy", "tied_share", "kendall_tau_b", "pair_accuracy", "pair_tau_b"}),
        ([5, 5], {"ranking_accuracy", "tied_share", "kendall_tau_b", "pair_accuracy", "pair_tau_b"}),
        ([0, 0], {"ranking_accuracy", "tied_share", "kendall_tau_b", "pair_accuracy", "pair_tau_b"}),
        ([3, 900], set()),
    ],
)
def test_what_a_file_cannot_tell_is_null(tmp_path: Path, lengths: list[int], missing: set[str]) -> None:
    path = tmp_path / "few.jsonl"
    rows = [
        {"prompt": f"{'list ' * number}things", "output_tokens": count}
        for number, count in enumerate(lengths)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (report,) = _strictly(_invoke(evaluate.command, path, "--json").stdout)
    assert {name for name, value in report.items() if value is None} == missing | {"stated_error"}
    assert ("-" in _invoke(evaluate.command, path).stdout.split()) == bool(missing)


def test_a_shipped_models_cards_agree_with_it() -> None:
    directory = MODELS / "default"
    card = read_card(directory)
    assert (directory / CARD_TEXT).read_text() == card_text(card)
    assert file_hashes(directory, list(card.sha256)) == card.sha256
    assert card.sources.keys() == set(card.data)
    assert card.metrics.keys() <= measures().keys()


def test_training_refuses_logs_without_long_answers(tmp_path: Path) -> None:
    pytest.importorskip("xgboost")
    result = _invoke(train.command, _logs(tmp_path / "logs.jsonl"), "--out", tmp_path / "own")
    assert isinstance(result.exception, ClairvoyantError)
    assert "only 80 of 240 answers are Long" in str(result.exception)


def test_a_trained_model_is_loaded_and_used(tmp_path: Path) -> None:
    pytest.importorskip("xgboost")
    logs, out = _logs(tmp_path / "logs.jsonl"), tmp_path / "own"
    result = _invoke(train.command, logs, "--out", out, "--min-long", 50)
    assert result.exit_code == 0, result.exception
    assert "ranking" in result.stdout
    card = json.loads((out / "card.json").read_text())
    assert card["kind"] == "lexical"
    assert card["sha256"]
    text = (out / "CARD.md").read_text()
    assert "# Model card: own" in text
    assert all(digest in text for digest in card["sha256"].values())
    assert "logs: supplied for the training" in text
    assert "| ranking_accuracy |" in text
    loaded = predictor.load(out)
    long, short = (
        loaded.predict(PromptView(text)).score for text in ("Write an essay about item 7", "Who is number 7?")
    )
    assert long > short
