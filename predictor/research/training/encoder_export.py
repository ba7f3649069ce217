"""From a fine-tuned network to what is shipped: ONNX for one prompt, weights of eight bits, a card."""

from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory

import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import Tensor, nn
from torch.nn import functional

from predictor.card import Card
from predictor.research.training.card_writing import file_hashes, write_card
from predictor.research.training.encoder import HEADS, SHAPE, Network
from predictor.semantic.model import ENCODER, VOCABULARY
from predictor.semantic.opinion import EMBEDDED

OPSET = 17


class Single(nn.Module):
    """The network for one prompt: nothing is padded, and one product makes queries, keys and values."""

    def __init__(self, network: Network, centre: Tensor, length: float) -> None:
        """`centre` (EMBEDDED,) and `length` make embeddings centred and of unit length on average."""
        super().__init__()
        self.words, self.places, self.first, self.head = (
            network.words,
            network.places,
            network.first,
            network.head,
        )
        self.layers = network.layers
        self.joint = nn.ModuleList()
        for layer in network.layers:
            joint = nn.Linear(EMBEDDED, 3 * EMBEDDED)
            scale = (EMBEDDED // HEADS) ** -0.5
            joint.weight.data = torch.cat([layer.q.weight * scale, layer.k.weight, layer.v.weight]).detach()
            joint.bias.data = torch.cat([layer.q.bias * scale, layer.k.bias, layer.v.bias]).detach()
            self.joint.append(joint)
        self.register_buffer("centre", centre)
        self.length = length

    def forward(self, ids: Tensor, shape: Tensor) -> tuple[Tensor, Tensor]:
        """Return the score and the embedding (EMBEDDED,) of ids (pieces,) and a shape (SHAPE,)."""
        pieces = ids.shape[0]
        x = self.first(self.words(ids) + self.places[:pieces])
        for layer, joint in zip(self.layers, self.joint, strict=True):
            q, k, v = joint(x).view(pieces, 3, HEADS, EMBEDDED // HEADS).permute(1, 2, 0, 3).unbind(0)
            mixed = ((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(0, 1).reshape(pieces, EMBEDDED)
            x = layer.after(x + layer.o(mixed))
            x = layer.last(x + layer.outer(functional.gelu(layer.inner(x))))
        embedding = x.mean(0)
        return self.head(torch.cat([embedding, shape]))[0], (embedding - self.centre) / self.length


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


def ship(single: Single, vocabulary: Path, card: Card, directory: Path) -> None:
    """Write a model directory: the encoder, its vocabulary, and the card with their hashes."""
    directory.mkdir(parents=True, exist_ok=True)
    export(single, directory / ENCODER)
    copyfile(vocabulary, directory / VOCABULARY)
    card.sha256.update(file_hashes(directory, [ENCODER, VOCABULARY]))
    write_card(card, directory)
