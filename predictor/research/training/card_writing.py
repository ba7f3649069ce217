"""Write a model's card: card.json for programs, and CARD.md for people."""

import json
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from predictor.card import CARD, Card

CARD_TEXT = "CARD.md"

KINDS = {
    "lexical": "Hashed words and pairs of words, hand-made cues, small trees and a small net on top.",
    "semantic": "A second opinion: MiniLM's lowest layers, fine-tuned to rank prompts (PARS), in eight bits.",
    "paper": "The predictor of the Clairvoyant paper: 19 features, XGBoost, P(Long) as the key.",
    "urgency": "Linear readings of a prompt's words, of the encoder's embedding, and of vital signs.",
}
"""What each kind of model is."""

LENGTH = "how long the answer will be"
PREDICTED = {"urgency": "how urgent it is, from 0 (immediate) to 4"}
"""What is predicted, where it is not the length of an answer."""

MEASURES = {
    "prompts": "prompts trained on, as many of each class",
    "n": "prompts judged",
    "n_short": "answers under 200 tokens among them",
    "n_long": "answers of 800 tokens or more among them",
    "ranking_accuracy": "(Short, Long) pairs ordered rightly, ties counted half; 0.5 is chance",
    "tied_share": "(Short, Long) pairs given the same score",
    "kendall_tau_b": "rank correlation of score and length over all pairs",
    "min_length_difference": "least relative difference of length of the pairs below (PARS)",
    "n_pairs": "pairs whose lengths differ by that much",
    "pair_accuracy": "those pairs ordered rightly, ties counted half",
    "pair_tau_b": "rank correlation over those pairs",
    "class_accuracy": "answers of the most probable class",
    "calibration_error": "expected calibration error of the class probabilities; 0 is best",
    "q90_coverage": "answers within the predicted 90 % quantile; 0.9 is best",
    "n_stated": "prompts that say in words how long an answer they want",
    "stated_error": "median relative error of the expected tokens there",
    "unseen_files": "files ranked by models that had seen nothing of their distribution",
    "unseen_ranking_accuracy": "mean ranking accuracy over those files, each of a model's answers for itself",
    "unseen_ranking_accuracy_least": "ranking accuracy of the worst of those files",
    "urgency_exact": "cases of unseen complaints and phrases given their own level",
    "urgency_within_one": "those given it or one beside it",
    "urgency_kappa": "Cohen's kappa with quadratic weights; 0 is chance, 1 is best",
    "urgency_under": "cases of levels 0 and 1 called less urgent than they are",
    "urgency_missed": "cases of levels 0 and 1 called 2 or less urgent",
    "urgency_over": "cases called more urgent than they are",
    "apart_exact": "triage cases that were written apart, given their own level",
    "apart_within_one": "those given it or one beside it",
    "apart_kappa": "Cohen's kappa with quadratic weights",
    "apart_under": "of levels 0 and 1 among them, called less urgent than they are",
    "apart_missed": "of levels 0 and 1 among them, called 2 or less urgent",
    "apart_over": "those called more urgent than they are",
    "day_exact": "patients of a day in wordings that no training case has, given their own level",
    "day_within_one": "those given it or one beside it",
    "day_kappa": "Cohen's kappa with quadratic weights",
    "day_under": "of levels 0 and 1 among them, called less urgent than they are",
    "day_missed": "of levels 0 and 1 among them, called 2 or less urgent",
    "day_over": "those called more urgent than they are",
    "nested_files": "files ranked by models that saw none of their family, nor were chosen on it",
    "nested_ranking_accuracy": "mean ranking accuracy over the families of those files",
    "nested_ranking_accuracy_files": "the same, over the files",
    "nested_ranking_accuracy_least": "ranking accuracy of the worst of those files",
    "nested_lexical": "mean over those families of the lexical model's score alone",
    "nested_lexical_files": "the same, over the files",
    "nested_lexical_least": "the worst of those files by the lexical model alone",
    "nested_together": "mean over families of the encoder's and the lexical model's score together",
    "nested_together_files": "the same, over the files",
    "nested_together_least": "the worst of those files by both together",
}

LIMITS = """\
- Measures not named unseen come from prompts that resemble the training data: the same sources, often the
  same templates. Traffic of another kind is ranked worse. The unseen measures, where given, are nearer to
  it, but the recipe was chosen by them.
- Where several files are judged together, telling one file from another earns part of the accuracy. Within
  one application's traffic expect less.
- Lengths are those of the models that answered. Another model is longer or shorter throughout, which leaves
  the order but moves classes, expected tokens and quantiles until traffic has been learnt from.
- One answer to a prompt differs from the next: no predictor ranks without error.
- It knows the languages and subjects it was trained on; elsewhere it falls back on the prompt's form."""

LIMITS_OF_KIND = {
    "lexical": """\
- The nested measures are the honest ones: what ranked a family was trained and chosen on other families. Only
  how much the net counts beside the trees was decided with all families in view.
- Held out means five-fold: the model in this directory was trained on all rows afterwards. Its calibration
  was fitted on the very scores it is judged by, so calibration_error and q90_coverage are optimistic.""",
    "semantic": """\
- The nested measures are the honest ones: what ranked a family was trained and chosen on other families.
- It reads the first 88 and the last 36 word pieces of a prompt, and its pieces are English: of other
  scripts it sees single characters.
- In other than Latin script its share is halved, which was decided on these very files.
- Judged was a network of 2,500 steps that saw nothing of 13 families, on 400 prompts a file of seven of them.
  The one in this directory shares its first 1,300 steps and was trained on for 1,400 with all rows.""",
    "urgency": """\
- This is no medical device and no safety system. It errs in both directions, and nothing that may cost a
  life may depend on it.
- The measures are of written cases: of complaints and phrases held out, of cases written apart, and of
  textbook patients in unknown wordings. Its settings were chosen on these, and the last of its phrases were
  written by who knew the cases apart, so their figures are optimistic; real patients are harder.
  `clairvoyant evaluate --urgency FILE` judges it on your own.
- Nurses and experts part, too: in 15 % of 1,267 records (KTAS; Moon et al., PLoS One, 2019), and 87 trained
  nurses gave 59 % of the ESI handbook's scenarios their level (Mistry et al., Ann Emerg Med, 2018).
- It reads English, of a long prompt the two ends, and no system message.""",
    "paper": """\
- The three probabilities are the softmax's own and not calibrated; expected tokens and quantiles are fixed
  numbers for each class.""",
}


def write_card(card: Card, directory: Path) -> None:
    """Write the card into the model's directory, for programs and for people."""
    (directory / CARD).write_text(json.dumps(asdict(card), indent=2) + "\n", encoding="utf-8")
    (directory / CARD_TEXT).write_text(card_text(card), encoding="utf-8")


def file_hashes(directory: Path, names: list[str]) -> dict[str, str]:
    """Return the SHA-256 of each named file of a model directory, in hexadecimal."""
    return {name: sha256((directory / name).read_bytes()).hexdigest() for name in names}


def card_text(card: Card) -> str:
    """Return a model card in Markdown (Mitchell et al., 2019): data, measures, limits, files."""
    data = [f"- {name}: {card.sources.get(name, 'supplied by whoever trained it')}" for name in card.data]
    measures = [
        f"| {name} | {_figure(card.metrics[name])} | {meaning} |"
        for name, meaning in MEASURES.items()
        if name in card.metrics
    ]
    files = [f"- `{name}`: `{digest}`" for name, digest in card.sha256.items()]
    sections = {
        f"# Model card: {card.name}": [
            f"{KINDS[card.kind]} From the request alone it predicts {PREDICTED.get(card.kind, LENGTH)}.",
            "",
            f"Features version {card.features_version}, seed {card.seed}. Licence: {card.licence}.",
        ],
        "## Data": data,
        "## Measures": ["| measure | value | meaning |", "|---|---|---|", *measures],
        "## Limits": [*([LIMITS] if card.kind not in PREDICTED else []), LIMITS_OF_KIND[card.kind]],
        "## Files (SHA-256)": files,
    }
    return "\n\n".join("\n".join([head, "", *lines]) for head, lines in sections.items()) + "\n"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) and value > 1 else f"{value:.3f}"
