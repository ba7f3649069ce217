"""How many tokens llama.cpp's host cache holds, by how the server was started and by the model's file.

A size is a start; what servers report of their answers corrects it. It is not told where a layer keeps less
than the keys and values of every token: sliding windows, recurrent layers, compressed attention.
"""

import struct
from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any, BinaryIO

from clairvoyant_cli.backends.process_inspection import Started, values_of

MIB = 1024 * 1024
USUAL_MIB = 8192  # --cache-ram since October 2025
BYTES_A_VALUE = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}
KEEPS_LESS = (
    "sliding_window",
    "kv_lora_rank",
    "ssm.",
    "linear_attention",
    "shared_kv_layers",
    "wkv_head_size",
)

# GGUF (ggml/docs/gguf.md): the formats of values by their type.
FORMATS = "B", "b", "H", "h", "I", "i", "f", "?", None, None, "Q", "q", "d"
STRING, ARRAY = 8, 9
MAX_FIELDS, MAX_ITEMS, MAX_NAME_BYTES = 1000, 1024, 65_536


def cache_tokens(started: Started, model: str = "") -> float:
    """Return the tokens that the host cache of a llama.cpp server has room for; infinite if unknown. `model`
    is the path of its file, if the command line has none.
    """
    words = started.words
    mib = next(values_of(words, "-cram", "--cache-ram"), started.variables.get("LLAMA_ARG_CACHE_RAM"))
    path = next(values_of(words, "-m", "--model"), model)
    types = [
        next(values_of(words, short, long), "f16")
        for short, long in (("-ctk", "--cache-type-k"), ("-ctv", "--cache-type-v"))
    ]
    try:
        room_bytes = float(mib or USUAL_MIB) * MIB
        if not path or room_bytes < 0:  # -1 is no limit
            return inf
        with (Path(started.folder) / path).open("rb") as file:
            a_token = bytes_a_token(dict(metadata(file)), *types)
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return inf
    return inf if a_token is None else room_bytes / a_token


def bytes_a_token(about: Mapping[str, Any], type_k: str, type_v: str) -> float | None:
    """Return what a token takes in the KV cache, by a model's metadata; None if its layers keep less."""
    arch = f"{about['general.architecture']}."
    own = {name.removeprefix(arch): value for name, value in about.items() if name.startswith(arch)}
    if any(name in key and value for key, value in own.items() for name in KEEPS_LESS):
        return None
    layers, heads = own["block_count"], own["attention.head_count"]
    kv_heads = own.get("attention.head_count_kv", heads)
    total = sum(kv_heads) if isinstance(kv_heads, list) else kv_heads * layers
    usual = own["embedding_length"] // (max(heads) if isinstance(heads, list) else heads)
    k_bytes = own.get("attention.key_length", usual) * BYTES_A_VALUE[type_k]
    v_bytes = own.get("attention.value_length", usual) * BYTES_A_VALUE[type_v]
    return float(total * (k_bytes + v_bytes)) or None


def metadata(file: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a GGUF file up to its vocabulary; ValueError or struct.error if it is none."""

    def read(form: str) -> Any:
        return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))[0]

    def read_text() -> str:
        size = read("Q")
        if size > MAX_NAME_BYTES:
            raise ValueError("a name is too long")
        return file.read(size).decode("utf-8", "replace")

    def read_value(kind: int) -> Any:
        if kind == STRING:
            return read_text()
        if kind == ARRAY:
            inner, count = read("I"), read("Q")
            if count > MAX_ITEMS:
                raise ValueError("a list is too long")
            return [read_value(inner) for _ in range(count)]
        form = FORMATS[kind] if kind < len(FORMATS) else None
        if form is None:
            raise ValueError("a value of unknown type")
        return read(form)

    if file.read(4) != b"GGUF" or read("I") < 2:
        raise ValueError("no GGUF file")
    _, fields = read("Q"), read("Q")
    for _ in range(min(fields, MAX_FIELDS)):
        name, kind = read_text(), read("I")
        if name.startswith("tokenizer."):
            return
        yield name, read_value(kind)
