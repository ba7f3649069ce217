"""UrgencyLevels from text: what is read of it, what is made of that, and how it is judged and taught."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from clairvoyant_lab.commands import evaluate, train
from clairvoyant_lab.studies.urgency import judge
from clairvoyant_lab.training.dataset import read_cases
from clairvoyant_lab.training.urgency_cases.acuity import Findings, level_of
from clairvoyant_lab.training.urgency_cases.writing import read_day, write_cases
from click.testing import CliRunner

import predictor
from predictor.card import read_card
from predictor.errors import ModelError
from predictor.loading import MODELS, SEMANTIC, URGENCY, load_model
from predictor.record import PromptView
from predictor.urgency.model import LEVELS, UrgencyModel
from predictor.urgency.vitals import NAMES, cues, read_signs


@pytest.mark.parametrize(
    ("text", "pulse", "pressure", "oxygen", "temperature", "pain"),
    [
        ("BP 128/84, HR 76, RR 16, T 98.6°F, pain 7/10", 76, 128, None, 37.0, 7),
        ("heart rate of 60.0, systolic pressure of 137.0, temperature 36.5°C", 60, 137, None, 36.5, None),
        ("SpO2: 93% on air; pulse 104; blood pressure 90/60", 104, 90, 93, None, None),
        ('{"hr": 73, "sbp": 138, "temp": 36.2, "spo2": 91, "pain": 5}', 73, 138, 91, 36.2, 5),
        ("SBP: 92; DBP: 60; HR: 118; BT: 38.6; Saturation: 89; NRS: 3", 118, 92, 89, 38.6, 3),
        ("pulse of 76, systolic pressure of 155; 37.3 degrees; abd pain 2 days", 76, 155, None, 37.3, None),
        ("a BP reading of 130/82 mmHg, heart rate (HR) of 74 bpm, SpO2 of 99%", 74, 130, 99, None, None),
        ("Obs: 132/82 mmHg, 74 bpm, 36.5 C, 99% on room air; rates it at 3", 74, 132, 99, 36.5, 3),
        ("Blood pressure of 128 over 76; pain with an intensity of 5", None, 128, None, None, 5),
        ("pressure of 110 systolic and 70 diastolic; denied pain", None, 110, None, None, 0),
        ("70 degrees in the shade, rated 4 stars", None, None, None, None, 4),
        ("HR 9000, T 12, meeting at 10:30 about the BP oil price, 42 pages", None, None, None, None, None),
    ],
)  # fmt: skip
def test_vital_signs_are_read_as_they_are_noted(
    text: str,
    pulse: float | None,
    pressure: float | None,
    oxygen: float | None,
    temperature: float | None,
    pain: float | None,
) -> None:
    signs = read_signs(text)
    found = (signs.pulse, signs.pressure, signs.oxygen, signs.temperature, signs.pain)
    assert found == pytest.approx((pulse, pressure, oxygen, temperature, pain))


@pytest.mark.parametrize(
    ("text", "age", "mind", "awake"),
    [
        ("72 y.o. F, GCS 15, for 2 days", 72, 0, True),
        ("67M, AVPU P", 67, 3, False),
        ("six days ill; F/31, Ment: drowsy", 31, 2, False),
        ("a 6-month-old girl, alert", 0.5, 0, True),
        ("GCS 12", None, 2, False),
        ("Male, 54, fully conscious, not confused", 54, 0, True),
        ("a woman aged 31, verbally responsive", 31, 2, False),
    ],
)
def test_age_and_mind_are_read_as_they_are_noted(
    text: str, age: float | None, mind: int, awake: bool
) -> None:
    signs = read_signs(text)
    assert (signs.age, signs.mind, signs.awake) == (age, mind, awake)


CALM = Findings(80, 16, 130, 80, 98, 36.8, "A", 0, "central", False, 40.0)


@pytest.mark.parametrize(
    ("complaint", "found", "level"),
    [
        (3, CALM, 3),
        (3, replace(CALM, mind="U"), 0),  # what threatens life is immediate whatever the complaint
        (2, replace(CALM, oxygen=90), 1),
        (4, replace(CALM, oxygen=90), 2),  # raised by two at most
        (2, replace(CALM, pain=9), 1),
        (2, replace(CALM, pain=9, place="peripheral"), 2),
        (3, replace(CALM, pain=9, chronic=True), 2),
        (3, replace(CALM, heat=38.2, age=0.1, pulse=150, breaths=44), 1),  # a fever under three months
        (3, replace(CALM, age=5.0, pulse=120, breaths=26, systolic=98), 3),  # nothing for a child
        (3, replace(CALM, pulse=120), 2),
    ],
)
def test_written_levels_follow_the_rules_of_triage(complaint: int, found: Findings, level: int) -> None:
    assert level_of(complaint, found) == level


def test_a_patient_is_as_urgent_in_words_that_no_record_had_in_training() -> None:
    model, cases = UrgencyModel(MODELS / URGENCY, ""), read_day()
    wordings = len({case.text for case in cases if case.source == cases[0].source})
    real = np.array([case.level for case in cases])
    said = np.array([model.level(PromptView(case.text)) for case in cases])
    verdict = judge("day", real, said)
    assert verdict.within_one > 0.95
    assert (verdict.under or 0.0) < 0.1
    apart = np.ptp(said.reshape(-1, wordings), axis=1)
    assert (apart <= 1).mean() > 0.9
    assert not {case.text for case in cases} & {case.text for case in write_cases()}


def test_the_weather_has_no_fever_and_a_long_record_is_none_the_more_urgent() -> None:
    def named(text: str) -> dict[str, float]:
        return dict(zip(NAMES, cues(text, read_signs(text)).tolist(), strict=True))

    assert named("It is 30 degrees outside, what do I wear?")["temperature"] == 0.0
    record = named("54M, HR 80. " + 200 * "Seen before. ")
    assert (record["patient"], record["length"]) == (1.0, 0.0)


OBVIOUS = [
    ("my husband is not breathing, what do I do", 0, 1),
    ("production database is down, all requests fail, data loss in progress", 0, 1),
    ("60-year-old with crushing chest pain and sweating. BP 82/50, HR 128, SpO2 88%, unresponsive", 0, 1),
    ("write a poem about the autumn sea", 3, 4),
    ("URGENT!!! write me a poem about my cat", 3, 4),
    ("What is the capital of Norway?", 2, 4),
    ("summarise this report for the archive, whenever there is time", 3, 4),
]


@pytest.mark.parametrize(("text", "most", "least"), OBVIOUS)
def test_the_obvious_is_seen(text: str, most: int, least: int) -> None:
    model, encoder = predictor.load_urgency(), predictor.load_encoder()
    assert most <= model.level(PromptView(text)) <= least
    assert most <= model.level(PromptView(text), encoder.encode(text)) <= least


def test_the_shipped_model_was_trained_with_the_shipped_encoder() -> None:
    assert predictor.load_urgency().hears, (
        "the encoder has changed; run: python -m clairvoyant_lab.training.urgency_cases"
    )
    assert not predictor.load_urgency(with_encoder=False).hears
    card = read_card(MODELS / URGENCY)
    assert card.sources["encoder"] == read_card(MODELS / SEMANTIC).sha256["encoder.onnx"]
    assert ["urgency_cases" in name for name in card.data] == [True]


@pytest.mark.parametrize("text", ["", " ", "\x00\ud800", "a" * 200_000, "1" * 5000, "BP " * 3000 + "٣/٤"])
def test_any_text_has_a_level(text: str) -> None:
    assert predictor.load_urgency().level(PromptView(text)) in range(LEVELS)


def test_it_is_no_model_of_lengths_nor_the_other_way_round() -> None:
    with pytest.raises(ModelError, match="not 'lexical'"):
        load_model("urgency")
    with pytest.raises(ModelError, match="not of urgency"):
        predictor.load_urgency("default")


def test_a_damaged_model_is_one_line(tmp_path: Path) -> None:
    directory = Path(shutil.copytree(MODELS / URGENCY, tmp_path / URGENCY))
    weights = directory / "weights.npz"
    weights.write_bytes(weights.read_bytes()[:10_000])
    with pytest.raises(ModelError, match="cannot be read"):
        UrgencyModel(directory, "")


def test_files_of_cases_are_read_and_what_is_wrong_is_said(tmp_path: Path) -> None:
    lines, table, wrong = tmp_path / "a.jsonl", tmp_path / "b.csv", tmp_path / "c.jsonl"
    lines.write_text('{"prompt": "hi", "urgency": 3}\n{"prompt": "help", "acuity": 1}\n')
    assert [(case.text, case.level) for case in read_cases(lines)] == [("hi", 3), ("help", 0)]
    table.write_text('Vignette,Note,acuity\n"a, b",x,5\n')
    assert [(case.text, case.level) for case in read_cases(table)] == [("a, b", 4)]
    wrong.write_text('{"prompt": "hi", "urgency": 3}\n{"prompt": "hi", "urgency": 5}\n')
    with pytest.raises(ModelError, match="line 2"):
        read_cases(wrong)


def test_one_trains_and_judges_a_model_of_ones_own(tmp_path: Path) -> None:
    file, out = tmp_path / "own.jsonl", tmp_path / "own"
    words = ("fire", "smoke", "leak", "ticket", "poem")
    rows = [
        {
            "prompt": f"{words[number % LEVELS]} in room {'abcdefghij'[number // LEVELS % 10]}",
            "urgency": number % LEVELS,
        }
        for number in range(105)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trained = CliRunner().invoke(
        train.command, ["--urgency", str(file), "--out", str(out)], catch_exceptions=False
    )
    assert "model written" in trained.output
    judged = CliRunner().invoke(evaluate.command, ["--urgency", str(file), "--predictor", str(out), "--json"])
    own, by_words, commonest = json.loads(judged.stdout)
    assert own["name"] == "own"
    assert own["within_one"] > 0.9 > commonest["within_one"]
    assert by_words["exact"] > 0.7  # in doubt it errs towards urgency
    assert by_words["under"] == 0
    assert {"kappa", "under", "missed", "over", "confusion"} <= own.keys()
    few = tmp_path / "few.jsonl"
    few.write_text(json.dumps(rows[0]) + "\n")
    refused = CliRunner().invoke(train.command, ["--urgency", str(few), "--out", str(out)])
    assert "a model needs 20 of each" in str(refused.exception)
