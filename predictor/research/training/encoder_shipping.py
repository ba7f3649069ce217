"""Train the shipped encoder.

Usage: `python -m predictor.research.training.encoder_shipping --data DIR --minilm DIR`.

DIR of `--data` holds MANIFEST.json and its files, DIR of `--minilm` model.safetensors and vocab.txt of
all-MiniLM-L6-v2. Each part of the families is ranked by models that saw none of it, the encoder alone and
together with the lexical model; the encoder's share of the two is chosen on the other parts. What is shipped
is the mean of the parts' networks (Wortsman et al., Model soups, 2022), trained on with all rows. Needs torch
and safetensors; takes hours on a few cores.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from predictor.card import Calibration, Card
from predictor.loading import MODELS, SEMANTIC
from predictor.research.studies.families import family
from predictor.research.studies.nested import Scores, deal, file_accuracy
from predictor.research.studies.traffic import Corpus
from predictor.research.training.dataset import Dataset
from predictor.research.training.encoder import Network, Readings, fine_tune, read_prompts, score
from predictor.research.training.encoder_export import Single, ship
from predictor.research.training.fitting import Numbers, calibrate_evenly, fit
from predictor.research.training.labels import single_answers
from predictor.research.training.shipped_models import narrate, read_manifest, sources
from predictor.semantic.model import VOCABULARY, share_of
from predictor.semantic.tokenizer import Tokenizer

SHARES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
SEED = 42
STEPS, STEPS_ON = 1300, 1400
MINILM_LICENCE = "Apache-2.0 (LICENSE beside this; sentence-transformers/all-MiniLM-L6-v2, changed)"


@dataclass(frozen=True, slots=True)
class Outer:
    """Files of a part, a network that saw none of it, and what it and a lexical model of that kind say of the
    files' prompts, each (prompts,).
    """

    network: Network
    datasets: list[Dataset]
    encoder: Scores
    lexical: Scores

    def together(self, data: Dataset, share: float) -> Numbers:
        """Return the two scores of a file's prompts, mixed."""
        shares = np.array([share_of(prompt, share) for prompt in data.prompts])
        mixed: Numbers = (1 - shares) * self.lexical[data.name] + shares * self.encoder[data.name]
        return mixed

    def accuracies(self, share: float) -> dict[str, float]:
        """Return the ranking accuracy of each file that can be judged."""
        found = {data.name: file_accuracy(self.together(data, share), data) for data in self.datasets}
        return {name: accuracy for name, accuracy in found.items() if np.isfinite(accuracy)}


def train(corpus: Corpus, held: list[str], network: Network, readings: list[Readings], steps: int) -> None:
    """Fine-tune a network, in place, without some families, nor any prompt that they share."""
    known, labels = corpus.training_rows(held), corpus.labels
    firsts = np.searchsorted(labels.files, np.arange(len(corpus.datasets)))
    rows = [known[labels.files[known] == file] - first for file, first in enumerate(firsts)]
    used = [file for file, of_file in enumerate(rows) if len(of_file)]
    fine_tune(
        network,
        [corpus.datasets[file] for file in used],
        [readings[file] for file in used],
        [rows[file] for file in used],
        steps,
        narrate,
    )


def mean_network(minilm: Path, networks: list[Network]) -> Network:
    """Return a network with the mean of several networks' weights."""
    states = [network.state_dict() for network in networks]
    mean = Network(minilm)
    mean.load_state_dict({name: sum(state[name] for state in states) / len(states) for name in states[0]})
    return mean


def rank_outer(corpus: Corpus, part: list[str], minilm: Path, readings: list[Readings]) -> Outer:
    """Rank a part's files by models that saw none of it."""
    narrate(f"without {', '.join(part)}")
    network, known, labels = Network(minilm), corpus.training_rows(part), corpus.labels
    train(corpus, part, network, readings, STEPS)
    fitted = fit(corpus.material.rows(known), labels.targets[known], labels.weights[known], SEED)
    files = [file for file, data in enumerate(corpus.datasets) if family(data.name) in part]
    datasets = [corpus.datasets[file] for file in files]
    return Outer(
        network,
        datasets,
        {corpus.datasets[file].name: score(network, readings[file])[0].astype(float) for file in files},
        {data.name: fitted.scores(corpus.material.rows(corpus.rows_of(data))) for data in datasets},
    )


def family_mean(accuracies: dict[str, float]) -> float:
    """Return the mean over families of their files' means."""
    families: dict[str, list[float]] = {}
    for name, accuracy in accuracies.items():
        families.setdefault(family(name), []).append(accuracy)
    return float(np.mean([np.mean(each) for each in families.values()]))


def best_share(outers: list[Outer]) -> float:
    """Return the share of the encoder with which families are ranked best on average."""
    return max(
        SHARES,
        key=lambda share: family_mean(
            {name: accuracy for outer in outers for name, accuracy in outer.accuracies(share).items()}
        ),
    )


def measures(outers: list[Outer]) -> dict[str, float]:
    """Return the card's figures: each part with the share that is best on the others."""
    alone: dict[str, float] = {}
    both: dict[str, float] = {}
    lexical: dict[str, float] = {}
    for place, outer in enumerate(outers):
        alone |= outer.accuracies(1.0)
        lexical |= outer.accuracies(0.0)
        both |= outer.accuracies(best_share([*outers[:place], *outers[place + 1 :]]))
    figures: dict[str, float] = {"nested_files": len(alone)}
    judged = {"nested_lexical": lexical, "nested_ranking_accuracy": alone, "nested_together": both}
    for name, accuracies in judged.items():
        figures |= {
            name: family_mean(accuracies),
            f"{name}_files": float(np.mean(list(accuracies.values()))),
            f"{name}_least": min(accuracies.values()),
        }
    return figures


def calibrate_both(outers: list[Outer], share: float, allowed: set[str]) -> Calibration:
    """Fit mean and spread of log tokens to both scores, of families that the models had not seen."""
    files = [(outer, data) for outer in outers for data in outer.datasets if data.name in allowed]
    datasets = [data for _, data in files]
    scores = np.concatenate([outer.together(data, share) for outer, data in files])
    places = np.repeat(np.arange(len(files)), [len(data.prompts) for data in datasets])
    families = np.unique([family(data.name) for data in datasets], return_inverse=True)[1][places]
    return calibrate_evenly(scores, single_answers(datasets, SEED), families, SEED)


def main() -> None:
    """Judge, train and ship the encoder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory with MANIFEST.json")
    parser.add_argument("--minilm", type=Path, required=True, help="directory with model.safetensors")
    parser.add_argument("--out", type=Path, default=MODELS / SEMANTIC, help="where the model directory goes")
    options = parser.parse_args()
    entries = read_manifest(options.data)
    allowed = [entry for entry in entries if entry.allowed]
    names = {entry.data.name for entry in allowed}
    corpus = Corpus.of([entry.data for entry in entries], names)
    tokenizer, start = Tokenizer(options.minilm / VOCABULARY), Network(options.minilm)
    readings = [read_prompts(start, tokenizer, data.prompts) for data in corpus.datasets]
    outers = [rank_outer(corpus, part, options.minilm, readings) for part in deal(corpus.datasets)]
    share = best_share(outers)
    network = mean_network(options.minilm, [outer.network for outer in outers])
    train(corpus, [], network, readings, STEPS_ON)
    embedded = np.concatenate([score(network, readings[file])[1] for file in range(len(entries))])
    centre = embedded.mean(axis=0)
    length = float(np.sqrt(((embedded - centre) ** 2).sum(axis=1).mean()))
    card = Card(
        name=SEMANTIC,
        kind="semantic",
        features_version=1,
        calibration=calibrate_both(outers, share, names),
        data=sorted(names),
        licence=f"{MINILM_LICENCE}; fine-tuned on data under "
        + ", ".join(sorted({entry.licence for entry in allowed})),
        metrics=measures(outers),
        seed=SEED,
        sources=sources(allowed),
        share=share,
    )
    ship(Single(network, torch.from_numpy(centre), length), options.minilm / VOCABULARY, card, options.out)


if __name__ == "__main__":
    main()
