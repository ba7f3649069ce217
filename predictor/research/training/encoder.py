"""Train and ship the encoder that ranks prompts by the length of their answers.

Usage: `python -m predictor.research.training.encoder --data DIR --minilm DIR`.

MiniLM's lowest layers (Wang et al., 2020) are fine-tuned to rank prompts within a file (PARS, section III),
with a Huber loss on log length beside. DIR of `--data` holds MANIFEST.json and its files, DIR of `--minilm`
model.safetensors and vocab.txt of all-MiniLM-L6-v2. What is shipped is the mean of the networks that each saw
all but one part of the families (Wortsman et al., Model soups, 2022), trained on with all rows: ONNX with
weights in eight bits. Needs torch and safetensors besides the `train` extra; takes hours on a few cores.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from predictor.loading import MODELS, SEMANTIC
from predictor.research.studies.unseen import Corpus, deal, family, file_accuracy
from predictor.research.training.card_writing import file_hashes, write_card
from predictor.research.training.fitting import calibrate_evenly
from predictor.research.training.material import TYPICAL_LEVEL, Numbers, Rows, label, single_answers
from predictor.research.training.shipped_models import card_of, narrate, read_manifest
from predictor.semantic.model import ENCODER, VOCABULARY, shape, share_of
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
HEADS = 12
INNER = 1536
SHAPE = 2
DROPOUT = 0.1

FILES_A_STEP = 2
PROMPTS_A_FILE = 16
RATE, HEAD_RATE = 5e-5, 5e-4
"""The first 600 steps of the shipped one were of four files of eight prompts, at twice these rates, with one
more layer frozen."""

DELTA = 0.3
STEEPNESS = 1.5
LENGTH_SHARE = 0.5  # how much the loss on lengths weighs beside the one on pairs
CENTRED = 0.5
AVERAGED = 0.995  # the model kept is a running mean over the second half of the steps (Izmailov et al., 2018)
BATCH = 64

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

_PARTS = {
    "self_attn.out_proj": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "linear1": "intermediate.dense",
    "linear2": "output.dense",
    "norm2": "output.LayerNorm",
}
"""The parts of a layer as torch names them, and as MiniLM does."""


class Network(nn.Module):
    """Ids of word pieces and a prompt's shape to a score, and the mean of the last layer."""

    def __init__(self, minilm: Path) -> None:
        """Start from MiniLM's weights and a head that says nothing yet."""
        super().__init__()
        weights = load_file(minilm / "model.safetensors")
        self.words = nn.Embedding.from_pretrained(weights["embeddings.word_embeddings.weight"].float())
        places = weights["embeddings.position_embeddings.weight"][:MAX_PIECES].float()
        kinds = weights["embeddings.token_type_embeddings.weight"][0].float()
        self.places = nn.Parameter(places + kinds, requires_grad=False)
        self.first = nn.LayerNorm(EMBEDDED, eps=1e-12)
        self.first.load_state_dict(_weights(weights, "embeddings.LayerNorm."))
        self.layers = nn.ModuleList(_layer(weights, place) for place in range(LAYERS))
        self.head = nn.Linear(EMBEDDED + SHAPE, 1)
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.constant_(self.head.bias, TYPICAL_LEVEL)
        for part in (self.first, *self.layers[:FROZEN]):
            part.requires_grad_(False)

    def forward(self, ids: Tensor, shapes: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores and embeddings of ids (prompts, pieces), padded with 0, and shapes."""
        x = self.first(self.words(ids) + self.places[: ids.shape[1]])
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=ids == 0)
        there = (ids != 0).float()[:, :, None]
        embedding = (x.float() * there).sum(1) / there.sum(1)
        return self.head(torch.cat([embedding, shapes], 1))[:, 0], embedding


class Readings(NamedTuple):
    """A file's prompts as the network takes them: ids of word pieces, and shapes (prompts, SHAPE)."""

    ids: list[Ids]
    shapes: Floats

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the network's inputs for some prompts, padded to the longest."""
        ids = np.zeros((len(rows), max(len(self.ids[row]) for row in rows)), np.int64)
        for place, row in enumerate(rows):
            ids[place, : len(self.ids[row])] = self.ids[row]
        return torch.from_numpy(ids), torch.from_numpy(self.shapes[rows])


def read_prompts(tokenizer: Tokenizer, prompts: list[str]) -> Readings:
    """Read prompts once, for any number of steps."""
    ids = [np.array(tokenizer.read(prompt), np.int64) for prompt in prompts]
    return Readings(ids, np.array([shape(prompt) for prompt in prompts], np.float32))


def score(network: Network, readings: Readings) -> tuple[Floats, Floats]:
    """Return the scores (prompts,) and the embeddings (prompts, EMBEDDED) of a file's prompts."""
    scores = np.zeros(len(readings.ids), np.float32)
    embeddings = np.zeros((len(readings.ids), EMBEDDED), np.float32)
    order = np.argsort([len(each) for each in readings.ids], kind="stable")
    network.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            some, embedded = network(*readings.batch(rows))
            scores[rows], embeddings[rows] = some.float().numpy(), embedded.float().numpy()
    return scores, embeddings


def fine_tune(
    network: Network, corpus: Corpus, held: list[str], readings: list[Readings], steps: int
) -> None:
    """Train the upper layers and the head, in place, without some families and the prompts they share."""
    known, labels = corpus.training_rows(held), corpus.labels
    firsts = np.searchsorted(labels.files, np.arange(len(corpus.datasets)))
    rows = [known[labels.files[known] == file] - first for file, first in enumerate(firsts)]
    targets = [label([data], 1 - CENTRED).targets for data in corpus.datasets]
    torch.manual_seed(1)
    generator, chances = (
        np.random.default_rng(1),
        chances_of(corpus.families, [len(each) for each in rows], 0.5),
    )
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
                scores, _ = network(*readings[file].batch(drawn))
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


def _layer(weights: dict[str, Tensor], place: int) -> nn.TransformerEncoderLayer:
    """Return one layer of MiniLM."""
    layer = nn.TransformerEncoderLayer(
        EMBEDDED, HEADS, INNER, DROPOUT, activation="gelu", layer_norm_eps=1e-12, batch_first=True
    )
    name = f"encoder.layer.{place}."
    state = {
        f"{ours}.{kind}": weights[f"{name}{theirs}.{kind}"].float()
        for ours, theirs in _PARTS.items()
        for kind in ("weight", "bias")
    }
    for kind in ("weight", "bias"):
        parts = [weights[f"{name}attention.self.{part}.{kind}"] for part in ("query", "key", "value")]
        state[f"self_attn.in_proj_{kind}"] = torch.cat(parts).float()
    layer.load_state_dict(state)
    return layer


def _weights(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {kind: weights[f"{prefix}{kind}"].float() for kind in ("weight", "bias")}


class Single(nn.Module):
    """The network for one prompt of any length, its embeddings centred and of unit length on average."""

    def __init__(self, network: Network, centre: Tensor, length: float) -> None:
        """Take the mean (EMBEDDED,) and the length of embeddings."""
        super().__init__()
        self.network, self.length = network, length
        self.register_buffer("centre", centre)

    def forward(self, ids: Tensor, shapes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the score and the embedding (EMBEDDED,) of ids (pieces,) and a shape (SHAPE,)."""
        network, pieces, width = self.network, ids.shape[0], EMBEDDED // HEADS
        x = network.first(network.words(ids) + network.places[:pieces])
        for layer in network.layers:
            # torch's own attention is exported for one number of pieces only.
            attention = layer.self_attn
            joint = functional.linear(x, attention.in_proj_weight, attention.in_proj_bias)
            q, k, v = joint.view(pieces, 3, HEADS, width).permute(1, 2, 0, 3).unbind(0)
            mixed = (q @ k.transpose(-1, -2) * width**-0.5).softmax(-1) @ v
            x = layer.norm1(x + attention.out_proj(mixed.transpose(0, 1).reshape(pieces, EMBEDDED)))
            x = layer.norm2(x + layer.linear2(functional.gelu(layer.linear1(x))))
        embedding = x.mean(0)
        score = network.head(torch.cat([embedding, shapes]))[0]
        return score, (embedding - self.centre) / self.length


def export(single: Single, path: Path) -> None:
    """Write the network to `path` in ONNX, its weights in eight bits, quantised channel by channel."""
    with TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.onnx"
        torch.onnx.export(
            single.eval(),
            (torch.randint(1000, 2000, (20,)), torch.zeros(SHAPE)),
            str(whole),
            input_names=["ids", "shape"],
            output_names=["score", "embedding"],
            dynamic_axes={"ids": {0: "pieces"}},
            opset_version=OPSET,
            dynamo=False,
        )
        quantize_dynamic(whole, path, weight_type=QuantType.QInt8, per_channel=True)


def mean_network(minilm: Path, networks: list[Network]) -> Network:
    """Return a network with the mean of the weights of several."""
    states = [network.state_dict() for network in networks]
    mean = Network(minilm)
    mean.load_state_dict({name: sum(state[name] for state in states) / len(states) for name in states[0]})
    return mean


def mixed_scores(prompts: list[str], encoder: Numbers, lexical: Numbers) -> Numbers:
    """Return the scores of both models together, as a predictor with second opinions mixes them."""
    shares = np.array([share_of(prompt, ENCODER_SHARE) for prompt in prompts])
    mixed: Numbers = (1 - shares) * lexical + shares * encoder
    return mixed


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


def main() -> None:
    """Judge, train and ship the encoder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory with MANIFEST.json")
    parser.add_argument("--minilm", type=Path, required=True, help="directory with model.safetensors")
    parser.add_argument("--out", type=Path, default=MODELS / SEMANTIC, help="where the model directory goes")
    options = parser.parse_args()
    entries = read_manifest(options.data)
    allowed = [entry for entry in entries if entry.allowed]
    corpus = Corpus.of([entry.data for entry in entries], {entry.data.name for entry in allowed})
    tokenizer = Tokenizer(options.minilm / VOCABULARY)
    readings = [read_prompts(tokenizer, data.prompts) for data in corpus.datasets]
    networks: list[Network] = []
    scores: dict[str, dict[str, Numbers]] = {"ranking_accuracy": {}, "lexical": {}, "together": {}}
    for part in deal(corpus.datasets):
        narrate(f"without {', '.join(part)}")
        networks.append(Network(options.minilm))
        fine_tune(networks[-1], corpus, part, readings, STEPS)
        lexical = corpus.scores(part)
        for data in corpus.files(part):
            said = score(networks[-1], readings[corpus.datasets.index(data)])[0].astype(float)
            mixed = mixed_scores(data.prompts, said, lexical[data.name])
            for way, each in zip(scores, (said, lexical[data.name], mixed), strict=True):
                scores[way][data.name] = each
    network = mean_network(options.minilm, networks)
    fine_tune(network, corpus, [], readings, STEPS_ON)
    embedded = np.concatenate([score(network, each)[1] for each in readings])
    centre = embedded.mean(axis=0)
    length = float(np.sqrt(((embedded - centre) ** 2).sum(axis=1).mean()))
    judged = [entry.data for entry in allowed if entry.data.name in scores["together"]]
    places = np.repeat(np.arange(len(judged)), [len(data.prompts) for data in judged])
    calibration = calibrate_evenly(
        np.concatenate([scores["together"][data.name] for data in judged]),
        single_answers(judged, SEED),
        np.unique([family(data.name) for data in judged], return_inverse=True)[1][places],
        SEED,
    )
    options.out.mkdir(parents=True, exist_ok=True)
    export(Single(network, torch.from_numpy(centre), length), options.out / ENCODER)
    copyfile(options.minilm / VOCABULARY, options.out / VOCABULARY)
    card = card_of(SEMANTIC, "semantic", allowed, calibration, measures(corpus, scores))
    hashes = file_hashes(options.out, [ENCODER, VOCABULARY])
    licence = f"{MINILM_LICENCE}; fine-tuned {card.licence.removeprefix('MIT; trained ')}"
    write_card(replace(card, licence=licence, sha256=hashes, share=ENCODER_SHARE), options.out)


if __name__ == "__main__":
    main()
