"""Fine-tune the encoder to rank prompts by the length of their answers.

MiniLM's lowest layers (Wang et al., 2020), ranked the PARS way (section III): within a file, of two answers
whose log lengths differ by more than `DELTA` the longer one's prompt is to score higher, the more so the more
they differ; a Huber loss on log length with half of each file's level taken out keeps scores near log tokens.
The layers below `FROZEN` and the word pieces stay as they are: what they make of a prompt is computed once.
Needs torch and safetensors besides the `train` extra.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from predictor.research.studies.families import family
from predictor.research.training.dataset import Dataset
from predictor.research.training.labels import TYPICAL_LEVEL, label
from predictor.semantic.model import shape
from predictor.semantic.opinion import EMBEDDED
from predictor.semantic.tokenizer import MAX_PIECES, Tokenizer

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
LENGTH_SHARE = 0.5
"""How much the loss on lengths weighs beside the one on pairs."""

CENTRED = 0.5
AVERAGED = 0.995
"""The model kept is a running mean over the second half of the steps (Izmailov et al., 2018)."""

BATCH = 64

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

_NAMES = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "o": "attention.output.dense",
    "after": "attention.output.LayerNorm",
    "inner": "intermediate.dense",
    "outer": "output.dense",
    "last": "output.LayerNorm",
}


class Layer(nn.Module):
    """One transformer layer of BERT (Devlin et al., 2019)."""

    def __init__(self) -> None:
        """Start with weights to be replaced."""
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(EMBEDDED, EMBEDDED) for _ in range(4))
        self.inner, self.outer = nn.Linear(EMBEDDED, INNER), nn.Linear(INNER, EMBEDDED)
        self.after, self.last = nn.LayerNorm(EMBEDDED, eps=1e-12), nn.LayerNorm(EMBEDDED, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the next input; x is (prompts, pieces, EMBEDDED), the mask is added to the logits."""
        prompts, pieces, _ = x.shape

        def heads(part: Tensor) -> Tensor:
            return part.view(prompts, pieces, HEADS, EMBEDDED // HEADS).transpose(1, 2)

        logits = heads(self.q(x)) @ heads(self.k(x)).transpose(-1, -2) * (EMBEDDED // HEADS) ** -0.5
        mixed = ((logits + mask).softmax(-1).to(x.dtype) @ heads(self.v(x)).to(x.dtype)).transpose(1, 2)
        mixed = self.o(mixed.reshape(prompts, pieces, EMBEDDED))
        x = self.after(x + functional.dropout(mixed, DROPOUT, self.training))
        changed = self.outer(functional.gelu(self.inner(x)))
        result: Tensor = self.last(x + functional.dropout(changed, DROPOUT, self.training))
        return result


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
        _take(self.first, weights, "embeddings.LayerNorm")
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        for place, layer in enumerate(self.layers):
            for mine, theirs in _NAMES.items():
                _take(getattr(layer, mine), weights, f"encoder.layer.{place}.{theirs}")
        self.head = nn.Linear(EMBEDDED + SHAPE, 1)
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.constant_(self.head.bias, TYPICAL_LEVEL)
        for part in (self.first, *self.layers[:FROZEN]):
            part.requires_grad_(False)

    def lower(self, ids: Tensor) -> Tensor:
        """Return what the frozen layers make of ids (prompts, pieces), 0 where there is none."""
        x = self.first(self.words(ids) + self.places[: ids.shape[1]])
        for layer in self.layers[:FROZEN]:
            x = layer(x, _mask(ids))
        return x

    def forward(self, ids: Tensor, shapes: Tensor, lower: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores (prompts,) and embeddings (prompts, EMBEDDED)."""
        x = lower
        for layer in self.layers[FROZEN:]:
            x = layer(x, _mask(ids))
        there = (ids != 0).float()[:, :, None]
        embedding = (x.float() * there).sum(1) / there.sum(1)
        return self.head(torch.cat([embedding, shapes], 1))[:, 0], embedding


@dataclass(frozen=True, slots=True)
class Readings:
    """A file's prompts as the network takes them: ids, shapes (prompts, SHAPE), the frozen layers' output."""

    ids: list[Ids]
    shapes: Floats
    lower: list[npt.NDArray[np.float16]]

    def batch(self, rows: npt.NDArray[np.intp]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the network's three inputs for some prompts, padded to the longest."""
        longest = max(len(self.ids[row]) for row in rows)
        ids = np.zeros((len(rows), longest), np.int64)
        lower = np.zeros((len(rows), longest, EMBEDDED), np.float32)
        for place, row in enumerate(rows):
            ids[place, : len(self.ids[row])] = self.ids[row]
            lower[place, : len(self.ids[row])] = self.lower[row]
        return torch.from_numpy(ids), torch.from_numpy(self.shapes[rows]), torch.from_numpy(lower)


def read_prompts(network: Network, tokenizer: Tokenizer, prompts: list[str]) -> Readings:
    """Read prompts once, for any number of steps."""
    ids = [np.array(tokenizer.read(prompt), np.int64) for prompt in prompts]
    shapes = np.array([shape(prompt) for prompt in prompts], np.float32)
    lower: list[npt.NDArray[np.float16]] = [np.empty((0, 0), np.float16)] * len(ids)
    network.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for rows in _batches(ids):
            padded = np.zeros((len(rows), max(len(ids[row]) for row in rows)), np.int64)
            for place, row in enumerate(rows):
                padded[place, : len(ids[row])] = ids[row]
            states = network.lower(torch.from_numpy(padded)).to(torch.float16).numpy()
            for place, row in enumerate(rows):
                lower[row] = states[place, : len(ids[row])].copy()
    return Readings(ids, shapes, lower)


def score(network: Network, readings: Readings) -> tuple[Floats, Floats]:
    """Return the scores (prompts,) and the embeddings (prompts, EMBEDDED) of a file's prompts."""
    scores = np.zeros(len(readings.ids), np.float32)
    embeddings = np.zeros((len(readings.ids), EMBEDDED), np.float32)
    network.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for rows in _batches(readings.ids):
            some, embedded = network(*readings.batch(rows))
            scores[rows], embeddings[rows] = some.float().numpy(), embedded.float().numpy()
    return scores, embeddings


def fine_tune(
    network: Network,
    datasets: list[Dataset],
    readings: list[Readings],
    rows: list[npt.NDArray[np.intp]],
    steps: int,
    progress: Callable[[str], None],
    seed: int = 1,
) -> None:
    """Train the upper layers and the head on some rows of each dataset, in place."""
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    targets = [label([data], 1 - CENTRED).targets for data in datasets]
    chances = _chances(datasets, rows)
    trained = [part for part in network.parameters() if part.requires_grad]
    head = list(network.head.parameters())
    upper = [part for part in trained if all(part is not each for each in head)]
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
        for file in generator.choice(len(datasets), FILES_A_STEP, p=chances, replace=False):
            drawn = generator.choice(rows[file], PROMPTS_A_FILE, replace=False)
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
            progress(f"step {step + 1} of {steps}")
    with torch.no_grad():
        for part, kept in zip(trained, mean, strict=True):
            part.copy_(kept)


def _loss(scores: Tensor, targets: Tensor) -> Tensor:
    apart = targets[:, None] - targets[None]
    weights = torch.where(apart > DELTA, apart, torch.zeros(()))
    wrong = functional.softplus(-STEEPNESS * (scores[:, None] - scores[None]))
    pairs = (weights * wrong).sum() / weights.sum().clamp(min=5.0)
    return pairs + LENGTH_SHARE * functional.huber_loss(scores, targets)


def _chances(datasets: list[Dataset], rows: list[npt.NDArray[np.intp]]) -> npt.NDArray[np.float64]:
    """Return how likely each file is drawn: a family by the root of its size, its files likewise."""
    names = np.array([family(data.name) for data in datasets])
    sizes = np.array([len(each) for each in rows], float)
    chances = np.sqrt(sizes)
    for name in set(names):
        of_family = names == name
        chances[of_family] *= np.sqrt(sizes[of_family].sum()) / chances[of_family].sum()
    return chances / chances.sum()


def _batches(ids: list[Ids]) -> Iterator[npt.NDArray[np.intp]]:
    order = np.argsort([len(each) for each in ids], kind="stable")
    for start in range(0, len(order), BATCH):
        yield order[start : start + BATCH]


def _mask(ids: Tensor) -> Tensor:
    return torch.zeros(len(ids), 1, 1, ids.shape[1]).masked_fill(ids[:, None, None] == 0, -1e4)


def _take(part: nn.Linear | nn.LayerNorm, weights: dict[str, Tensor], name: str) -> None:
    part.weight.data = weights[f"{name}.weight"].float()
    part.bias.data = weights[f"{name}.bias"].float()
