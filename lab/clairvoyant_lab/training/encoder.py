"""Train and ship the encoder that ranks prompts by the length of their answers.

Usage: `python -m clairvoyant_lab.training.encoder --data DIR [--minilm DIR]`.

MiniLM's lowest layers (Wang et al., 2020) are fine-tuned to rank prompts within a file (PARS, section III),
with a Huber loss on log length beside. DIR of `--data` holds MANIFEST.json and its files, DIR of `--minilm`
model.safetensors and vocab.txt of all-MiniLM-L6-v2. What is shipped is the mean of the networks that each saw
all but one part of the families (Wortsman et al., Model soups, 2022), trained on with all rows: ONNX with
weights in eight bits. Needs torch and safetensors besides the `train` extra; takes hours on a few cores.
Without `--minilm` the shipped encoder is calibrated again, in minutes, for a new lexical model beside it.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from shutil import copyfile
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from clairvoyant_lab.studies.unseen import Corpus, deal, family, file_accuracy
from clairvoyant_lab.training.card_writing import file_hashes, write_card
from clairvoyant_lab.training.fitting import FOLDS, calibrate_evenly
from clairvoyant_lab.training.material import TYPICAL_LEVEL, Numbers, label, single_answers
from clairvoyant_lab.training.shipped_models import Entry, card_of, narrate, read_manifest
from predictor.card import Calibration, Card
from predictor.loading import MODELS, SEMANTIC
from predictor.semantic.model import ENCODER, VOCABULARY, Encoder, shape, share_of
from predictor.semantic.opinion import EMBEDDED
from predictor.semantic.tokenizer import MAX_PIECES, Tokenizer

SEED = 42
STEPS, STEPS_ON = 1300, 1400
OPSET = 17
ENCODER_SHARE = 0.4
"""Of the score where both have spoken; the share with which the families of the shipped one ranked best."""

MINILM_LICENCE = "Apache-2.0 (LICENSE beside this; sentence-transformers/all-MiniLM-L6-v2, changed)"

LAYERS = 5
"""Six cost 2.2 and 9.6 ms for 32 and 128 pieces, four two thirds of it. With the lexical model five, of 600
steps, rank seven families never seen at 0.709 on average, four, of 450, at 0.693."""

FROZEN = 1
HEADS, INNER, SHAPE = 12, 1536, 2
DROPOUT = 0.1

FILES_A_STEP, PROMPTS_A_FILE = 2, 16
RATE, HEAD_RATE = 5e-5, 5e-4
"""The first 600 steps of the shipped one were of four files of eight prompts, at twice these rates, with one
more layer frozen."""

DELTA = 0.3
STEEPNESS = 1.5
LENGTH_SHARE = 0.5  # how much the loss on lengths weighs beside the one on pairs
CENTRED = 0.5
AVERAGED = 0.995  # the model kept is a running mean over the second half of the steps (Izmailov et al., 2018)
BATCH = 64

Floats = npt.NDArray[np.float32]

_PARTS = {
    "mixed": "attention.output.dense",
    "after": "attention.output.LayerNorm",
    "inner": "intermediate.dense",
    "outer": "output.dense",
    "last": "output.LayerNorm",
}
"""The parts of a layer as `Layer` names them, and as MiniLM does."""


def attention(joint: Tensor) -> Tensor:
    """Attend within a prompt, whose queries, keys and values are side by side in `joint`, (pieces, 1152)."""
    parts = joint.float().view(1, -1, 3, HEADS, EMBEDDED // HEADS).permute(2, 0, 3, 1, 4)
    mixed = functional.scaled_dot_product_attention(*parts.unbind())
    return mixed[0].transpose(0, 1).reshape(-1, EMBEDDED).to(joint.dtype)


def _part(weights: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {kind: weights[f"{name}.{kind}"] for kind in ("weight", "bias")}


class Layer(nn.Module):
    """One layer of MiniLM."""

    def __init__(self, weights: dict[str, Tensor], place: int) -> None:
        """Start from MiniLM's weights."""
        super().__init__()
        self.joint, self.mixed = nn.Linear(EMBEDDED, 3 * EMBEDDED), nn.Linear(EMBEDDED, EMBEDDED)
        self.inner, self.outer = nn.Linear(EMBEDDED, INNER), nn.Linear(INNER, EMBEDDED)
        self.after, self.last = nn.LayerNorm(EMBEDDED, eps=1e-12), nn.LayerNorm(EMBEDDED, eps=1e-12)
        self.dropout = nn.Dropout(DROPOUT)
        name = f"encoder.layer.{place}."
        for ours, theirs in _PARTS.items():
            getattr(self, ours).load_state_dict(_part(weights, f"{name}{theirs}"))
        three = [_part(weights, f"{name}attention.self.{part}") for part in ("query", "key", "value")]
        self.joint.load_state_dict({kind: torch.cat([each[kind] for each in three]) for kind in three[0]})

    def forward(self, x: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the next layer's input (pieces, EMBEDDED)."""
        x = self.after(x + self.dropout(self.mixed(attend(self.joint(x)))))
        return self.last(x + self.dropout(self.outer(functional.gelu(self.inner(x)))))


class Readings(NamedTuple):
    """A file's prompts as the network takes them: ids of word pieces, and shapes (prompts, SHAPE)."""

    ids: list[Tensor]
    shapes: Tensor


class Network(nn.Module):
    """Ids of word pieces and a prompt's shape to a score, and the mean of the last layer."""

    def __init__(self, minilm: Path) -> None:
        """Start from MiniLM's weights and a head that says nothing yet."""
        super().__init__()
        weights = {name: part.float() for name, part in load_file(minilm / "model.safetensors").items()}
        self.words = nn.Embedding.from_pretrained(weights["embeddings.word_embeddings.weight"])
        places = weights["embeddings.position_embeddings.weight"][:MAX_PIECES]
        kinds = weights["embeddings.token_type_embeddings.weight"][0]
        self.places = nn.Parameter(places + kinds, requires_grad=False)
        self.first = nn.LayerNorm(EMBEDDED, eps=1e-12)
        self.first.load_state_dict(_part(weights, "embeddings.LayerNorm"))
        self.layers = nn.ModuleList(Layer(weights, place) for place in range(LAYERS))
        self.head = nn.Linear(EMBEDDED + SHAPE, 1)
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.constant_(self.head.bias, TYPICAL_LEVEL)
        for part in (self.first, *self.layers[:FROZEN]):
            part.requires_grad_(False)

    def forward(self, readings: Readings, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return scores (prompts,) and embeddings (prompts, EMBEDDED) of some prompts.

        They follow one another and only attention separates them: padding would be half of all pieces.
        """
        ids = [readings.ids[row] for row in rows]
        lengths = [len(each) for each in ids]
        places = torch.cat([self.places[:length] for length in lengths])
        x = self.first(self.words(torch.cat(ids)) + places)
        for layer in self.layers:
            x = layer(x, lambda joint: torch.cat([attention(part) for part in joint.split(lengths)]))
        embeddings = torch.stack([part.float().mean(0) for part in x.split(lengths)])
        return self.head(torch.cat([embeddings, readings.shapes[list(rows)]], 1))[:, 0], embeddings


def read_prompts(tokenizer: Tokenizer, prompts: list[str]) -> Readings:
    """Read prompts once, for any number of steps."""
    shapes = torch.from_numpy(np.array([shape(prompt) for prompt in prompts]))
    return Readings([torch.tensor(tokenizer.read(prompt)) for prompt in prompts], shapes)


def score(network: Network, readings: Readings) -> tuple[Floats, Floats]:
    """Return the scores (prompts,) and the embeddings (prompts, EMBEDDED) of a file's prompts."""
    network.eval()
    rows = range(len(readings.ids))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        parts = [network(readings, rows[start : start + BATCH]) for start in rows[::BATCH]]
    scores, embeddings = (torch.cat(each).float().numpy() for each in zip(*parts, strict=True))
    return scores, embeddings


def fine_tune(network: Network, corpus: Corpus, held: list[str], read: list[Readings], steps: int) -> None:
    """Train the upper layers and the head, in place, without some families and the prompts they share."""
    known, labels = corpus.training_rows(held), corpus.labels
    firsts = np.searchsorted(labels.files, np.arange(len(corpus.datasets)))
    rows = [known[labels.files[known] == file] - first for file, first in enumerate(firsts)]
    targets = [label([data], 1 - CENTRED).targets for data in corpus.datasets]
    torch.manual_seed(1)
    generator = np.random.default_rng(1)
    chances = chances_of(corpus.families, [len(each) for each in rows], 0.5)
    head = list(network.head.parameters())
    upper = [part for layer in network.layers[FROZEN:] for part in layer.parameters()]
    trained = [*upper, *head]
    optimiser = torch.optim.AdamW(
        [{"params": upper, "lr": RATE}, {"params": head, "lr": HEAD_RATE, "weight_decay": 0.0}],
        weight_decay=0.01,
    )
    warm = max(1, steps // 15)
    slowing = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / warm, max(0.02, (steps - step) / (steps - warm)))
    )
    mean: list[Tensor] = []
    for step in range(steps):
        network.train()
        optimiser.zero_grad(set_to_none=True)
        for file in generator.choice(len(rows), FILES_A_STEP, p=chances, replace=False):
            drawn = generator.choice(rows[file], min(PROMPTS_A_FILE, len(rows[file])), replace=False)
            with torch.autocast("cpu", torch.bfloat16):
                scores, _ = network(read[file], drawn)
            (_loss(scores.float(), torch.from_numpy(targets[file][drawn]).float()) / FILES_A_STEP).backward()
        nn.utils.clip_grad_norm_(upper, 1.0)
        optimiser.step()
        slowing.step()
        if step == steps // 2:
            mean = [part.detach().clone() for part in trained]
        for kept, part in zip(mean, trained, strict=False):
            kept.lerp_(part.detach(), 1 - AVERAGED)
        if (step + 1) % 100 == 0:
            narrate(f"step {step + 1} of {steps}")
    with torch.no_grad():
        for part, kept in zip(trained, mean, strict=True):
            part.copy_(kept)


def chances_of(families: Sequence[object], sizes: Sequence[int], power: float) -> Numbers:
    """Return the chance of drawing each file: a family by a power of its size, its files by their roots."""
    rows, places = np.array(sizes, float), np.unique(np.array(families), return_inverse=True)[1]
    roots, totals = np.sqrt(rows), np.bincount(places, rows)
    sums = np.maximum(np.bincount(places, roots), 1e-9)
    chances: Numbers = roots * (totals**power / sums)[places]
    chances /= chances.sum()
    return chances


def _loss(scores: Tensor, targets: Tensor) -> Tensor:
    apart = targets[:, None] - targets[None]
    weights = torch.where(apart > DELTA, apart, torch.zeros(()))
    wrong = functional.softplus(-STEEPNESS * (scores[:, None] - scores[None]))
    pairs = (weights * wrong).sum() / weights.sum().clamp(min=5.0)
    return pairs + LENGTH_SHARE * functional.huber_loss(scores, targets)


class Single(nn.Module):
    """The network for one prompt of any length, its embeddings centred and of unit length on average."""

    def __init__(self, network: Network, centre: Tensor, length: float) -> None:
        """Take the mean (EMBEDDED,) and the length of embeddings."""
        super().__init__()
        self.network, self.length = network, length
        self.register_buffer("centre", centre)

    def forward(self, ids: Tensor, shapes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the score and the embedding (EMBEDDED,) of ids (pieces,) and a shape (SHAPE,)."""
        network = self.network
        x = network.first(network.words(ids) + network.places[: ids.shape[0]])
        for layer in network.layers:
            x = layer(x, attention)
        embedding = x.mean(0)
        score = network.head(torch.cat([embedding, shapes])[None])[0, 0]
        return score, (embedding - self.centre) / self.length


def export(single: Single, path: Path) -> None:
    """Write the network to `path` in ONNX, its weights in eight bits, quantised channel by channel."""
    whole = BytesIO()
    torch.onnx.export(
        single.eval(),
        (torch.randint(1000, 2000, (20,)), torch.zeros(SHAPE)),
        whole,
        input_names=["ids", "shape"],
        output_names=["score", "embedding"],
        dynamic_axes={"ids": {0: "pieces"}},
        opset_version=OPSET,
        dynamo=False,
    )
    model = onnx.load_from_string(whole.getvalue())
    quantize_dynamic(model, path, weight_type=QuantType.QInt8, per_channel=True)


def measures(corpus: Corpus, scores: dict[str, dict[str, Numbers]]) -> dict[str, float]:
    """Return the card's figures of each way to score the files (encoder, lexical, together)."""
    figures: dict[str, float] = {}
    for way, of_file in scores.items():
        files: dict[str, list[float]] = {}
        for data in corpus.datasets:
            if data.name in of_file and np.isfinite(accuracy := file_accuracy(of_file[data.name], data)):
                files.setdefault(family(data.name), []).append(accuracy)
        accuracies = [accuracy for each in files.values() for accuracy in each]
        figures |= {
            "unseen_files": len(accuracies),
            f"unseen_{way}": float(np.mean([np.mean(each) for each in files.values()])),
            f"unseen_{way}_files": float(np.mean(accuracies)),
            f"unseen_{way}_least": min(accuracies),
        }
    return figures


def train(corpus: Corpus, allowed: list[Entry], minilm: Path, out: Path) -> Card:
    """Train an encoder and write it to `out`; return its card, without a calibration."""
    tokenizer = Tokenizer(minilm / VOCABULARY)
    readings = [read_prompts(tokenizer, data.prompts) for data in corpus.datasets]
    networks: list[Network] = []
    scores: dict[str, dict[str, Numbers]] = {"ranking_accuracy": {}, "lexical": {}, "together": {}}
    for part in deal(corpus.datasets):
        narrate(f"without {', '.join(part)}")
        networks.append(Network(minilm))
        fine_tune(networks[-1], corpus, part, readings, STEPS)
        lexical = corpus.scores(part)
        for data in corpus.files(part):
            said = score(networks[-1], readings[corpus.datasets.index(data)])[0].astype(float)
            shares = np.array([share_of(prompt, ENCODER_SHARE) for prompt in data.prompts])
            mixed = (1 - shares) * lexical[data.name] + shares * said
            for way, each in zip(scores, (said, lexical[data.name], mixed), strict=True):
                scores[way][data.name] = each
    states = [network.state_dict() for network in networks]
    network = networks[0]
    network.load_state_dict({name: sum(each[name] for each in states) / len(states) for name in states[0]})
    fine_tune(network, corpus, [], readings, STEPS_ON)
    embedded = np.concatenate([score(network, each)[1] for each in readings])
    centre = embedded.mean(axis=0)
    length = float(np.sqrt(((embedded - centre) ** 2).sum(axis=1).mean()))
    out.mkdir(parents=True, exist_ok=True)
    export(Single(network, torch.from_numpy(centre), length), out / ENCODER)
    copyfile(minilm / VOCABULARY, out / VOCABULARY)
    card = card_of(SEMANTIC, "semantic", allowed, Calibration(0.0, 1.0, 1.0), measures(corpus, scores))
    hashes = file_hashes(out, [ENCODER, VOCABULARY])
    licence = f"{MINILM_LICENCE}; fine-tuned {card.licence.removeprefix('MIT; trained ')}"
    return replace(card, licence=licence, sha256=hashes, share=ENCODER_SHARE)


def calibrated(corpus: Corpus, encoder: Encoder) -> Calibration:
    """Fit the calibration of an encoder's and the lexical model's score together, on all rows that may train.

    The lexical models have not seen a row's family; the encoder has.
    """
    rows = corpus.trainable
    lexical, _ = corpus.calibrated(rows, FOLDS, narrate)
    prompts = [prompt for data in corpus.datasets for prompt in data.prompts]
    opinions = [encoder.encode(prompts[row]) for row in rows]
    scores, shares = np.array([(opinion.score, opinion.share) for opinion in opinions]).T
    tokens, families = single_answers(corpus.datasets, SEED)[rows], corpus.material.families[rows]
    return calibrate_evenly((1 - shares) * lexical + shares * scores, tokens, families, SEED)


def main() -> None:
    """Judge, train and ship the encoder, or calibrate the shipped one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory with MANIFEST.json")
    parser.add_argument(
        "--minilm", type=Path, help="directory with model.safetensors; default: calibrate only"
    )
    parser.add_argument("--out", type=Path, default=MODELS / SEMANTIC, help="where the model directory goes")
    options = parser.parse_args()
    entries = read_manifest(options.data)
    allowed = [entry for entry in entries if entry.allowed]
    corpus = Corpus.of([entry.data for entry in entries], {entry.data.name for entry in allowed})
    if options.minilm:
        write_card(train(corpus, allowed, options.minilm, options.out), options.out)
    encoder = Encoder(options.out)
    write_card(replace(encoder.card, calibration=calibrated(corpus, encoder)), options.out)


if __name__ == "__main__":
    main()
