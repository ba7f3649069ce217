"""A llama-architecture model of random weights: real compute, real KV cache, gibberish text.

One coordinate of the residual stream is constant, so the output matrix has a bias: byte and control tokens
are not sampled, the text is plain ASCII, and the model hardly ever ends by itself. How to choose a length:

* exactly n tokens: `max_tokens` n, and `ignore_eos: true` where the sampler looks beyond the 40 likeliest;
* a random length, the same for the same seed: `temperature: 1, top_k: 0, top_p: 1, min_p: 0, seed: s` and
  `logit_bias: [[EOS, 15]]` (median about 200 tokens; 12 is about 800, 17 about 20).
"""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from clairvoyant_lab.replay.engine import WORDS

LAYERS, WIDTH, HEADS, HIDDEN, CONTEXT = 4, 256, 4, 704, 32768
EOS = 2
NEVER = -40.0
"""Logit added to the tokens that must not be sampled."""

CHAT_TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

SELDOM = -6.0
"""The same for the end of the text, mild enough for a client's `logit_bias` to outweigh."""

Floats = npt.NDArray[np.float32]
MatrixOf = Callable[[int, int], Floats]


def write_tiny_model(path: Path, seed: int = 7) -> Path:
    """Write the model to `path` (about 20 MB, half a second) and return the path."""
    writer = gguf.GGUFWriter(path, "llama")
    tokens, kinds = vocabulary()
    _write_header(writer, tokens, kinds)
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> Floats:
        return rng.normal(0.0, scale / np.sqrt(columns), (rows, columns)).astype(np.float32)

    embedding = matrix(len(tokens), WIDTH, 16.0)
    embedding[:, 0] = 4.0
    writer.add_tensor("token_embd.weight", embedding)
    for layer in range(LAYERS):
        for name, tensor in _layer(matrix).items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", tensor)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    writer.add_tensor("output.weight", _output(matrix(len(tokens), WIDTH, 2.0), kinds))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def vocabulary() -> tuple[list[str], list[int]]:
    """Return the pieces and their kinds: control, bytes, ASCII, and words with all of their beginnings.

    A SentencePiece tokenizer merges only into pieces it knows, so a word needs its beginnings.
    """
    kind = gguf.TokenType
    pieces = {"<unk>": kind.UNKNOWN, "<s>": kind.CONTROL, "</s>": kind.CONTROL}
    pieces |= {f"<0x{byte:02X}>": kind.BYTE for byte in range(256)}
    pieces |= {"▁": kind.NORMAL} | {chr(code): kind.NORMAL for code in range(33, 127)}
    for word in WORDS:
        pieces |= {"▁" + word[:end]: kind.NORMAL for end in range(1, len(word) + 1)}
    return list(pieces), [int(k) for k in pieces.values()]


def _write_header(writer: gguf.GGUFWriter, tokens: list[str], kinds: list[int]) -> None:
    writer.add_name("tiny-random")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(i) for i in range(len(tokens))])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(EOS)
    writer.add_unk_token_id(0)
    writer.add_chat_template(CHAT_TEMPLATE)


def _layer(matrix: MatrixOf) -> dict[str, Floats]:
    tensors = {f"attn_{name}": matrix(WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
    tensors |= {"ffn_gate": matrix(HIDDEN, WIDTH), "ffn_up": matrix(HIDDEN, WIDTH)}
    tensors["ffn_down"] = matrix(WIDTH, HIDDEN)
    for written in ("attn_output", "ffn_down"):
        tensors[written][0, :] = 0.0  # nobody writes to the constant coordinate
    ones = np.ones(WIDTH, np.float32)
    return tensors | {"attn_norm": ones, "ffn_norm": ones}


def _output(weights: Floats, kinds: list[int]) -> Floats:
    unwanted = np.array([k != int(gguf.TokenType.NORMAL) for k in kinds])
    weights[:, 0] = np.where(unwanted, NEVER, 0.0)
    weights[EOS, :] = 0.0
    weights[EOS, 0] = SELDOM  # hardly any noise, so that one bias means one chance of ending
    return weights
