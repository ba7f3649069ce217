"""Write a model's card: card.json for programs, and CARD.md for people."""

import json
import re
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from predictor.card import CARD, Card

CARD_TEXT = "CARD.md"

KINDS = {
    "lexical": "Small trees of dense cues, and a weight for each hashed word and pair of words.",
    "semantic": "A second opinion: MiniLM's lowest layers, fine-tuned to rank prompts (PARS), in eight bits.",
    "urgency": "Linear readings of a prompt's words, of the encoder's embedding, and of vital signs.",
}
"""What each kind of model is."""

LENGTH = "how long the answer will be"
PREDICTED = {"urgency": "how urgent it is, from 0 (immediate) to 4"}
"""What is predicted, where it is not the length of an answer."""

HERE = Path(__file__).parent


def measures() -> dict[str, str]:
    """Return what each measure means, from `card_measures.txt`."""
    lines = (HERE / "card_measures.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split(" | ", 1) for line in lines if not line.startswith("#"))


def limits() -> dict[str, str]:
    """Return the limits of each kind of model, and of all that predict lengths, from `card_limits.txt`."""
    parts = re.split(
        r"^\[(\w+)\]\n", (HERE / "card_limits.txt").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    return {name: text.rstrip("\n") for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def write_card(card: Card, directory: Path) -> None:
    """Write the card into the model's directory, for programs and for people."""
    (directory / CARD).write_text(json.dumps(asdict(card), indent=2) + "\n", encoding="utf-8")
    (directory / CARD_TEXT).write_text(card_text(card), encoding="utf-8")


def file_hashes(directory: Path, names: list[str]) -> dict[str, str]:
    """Return the SHA-256 of each named file of a model directory, in hexadecimal."""
    return {name: sha256((directory / name).read_bytes()).hexdigest() for name in names}


def card_text(card: Card) -> str:
    """Return a model card in Markdown (Mitchell et al., 2019): data, measures, limits, files."""
    data = [f"- {name}: {card.sources.get(name, 'supplied for the training')}" for name in card.data]
    rows = [
        f"| {name} | {_figure(card.metrics[name])} | {meaning} |"
        for name, meaning in measures().items()
        if name in card.metrics
    ]
    kinds = [card.kind] if card.kind in PREDICTED else ["lengths", card.kind]
    files = [f"- `{name}`: `{digest}`" for name, digest in card.sha256.items()]
    sections = {
        f"# Model card: {card.name}": [
            f"{KINDS[card.kind]} From the request alone it predicts {PREDICTED.get(card.kind, LENGTH)}.",
            "",
            f"Features version {card.features_version}, seed {card.seed}. Licence: {card.licence}.",
        ],
        "## Data": data,
        "## Measures": ["| measure | value | meaning |", "|---|---|---|", *rows],
        "## Limits": [limits()[name] for name in kinds],
        "## Files (SHA-256)": files,
    }
    return "\n\n".join("\n".join([head, "", *lines]) for head, lines in sections.items()) + "\n"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) and value > 1 else f"{value:.3f}"
