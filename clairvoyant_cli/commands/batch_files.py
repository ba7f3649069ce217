"""The files of `clairvoyant batch`: requests in OpenAI's batch format, their results and errors."""

import json
import os
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from clairvoyant_cli.errors import ClairvoyantError, InputError
from clairvoyant_cli.files import LARGE_BYTES, opened
from clairvoyant_cli.system import lock_now

ROUTES = {"/v1/chat/completions": "choices", "/v1/embeddings": "data"}  # each with the list in its answers
BEGINNING = b'{"id":"batch_req_'  # of each line of results and errors
LOCKED_BYTE = 1 << 30  # past the end of the file: on Windows nobody else can read what is locked


class Line(msgspec.Struct):
    """A line of a batch file; other fields are ignored."""

    custom_id: str
    method: str
    url: str
    body: dict[str, Any]

    @property
    def digest(self) -> str:
        """Identifies what is asked, whatever the order of its fields."""
        return sha256(encoded([self.method, self.url, self.body], sort_keys=True)).hexdigest()


def read_batch(path: Path) -> list[Line]:
    """Return the requests of a batch file, in UTF-8 or, with a byte order mark, UTF-16, as Windows PowerShell
    writes it. InputError names an invalid line.
    """
    lines, seen, number = list[Line](), dict[str, int](), 0
    with opened(path, "the batch file", LARGE_BYTES) as file:
        wide = file.read(2) in (BOM_UTF16_LE, BOM_UTF16_BE)
        file.seek(0)
        try:
            texts = TextIOWrapper(file, "utf-16" if wide else "utf-8-sig", newline="\n")
            for number, text in enumerate(texts, 1):
                where = f"{path}, line {number}"
                if not text.strip("\ufeff \t\r\n"):
                    continue
                line = msgspec.convert(json.loads(text.lstrip("\ufeff")), Line)
                if line.method != "POST" or line.url not in ROUTES:
                    wanted = f"give POST {' or '.join(ROUTES)}"
                    raise InputError(f"{where} asks for {line.method} {line.url}; {wanted}")
                if line.body.get("stream"):
                    raise InputError(f"{where} asks for a stream, which a batch cannot keep; remove it")
                if (twin := seen.setdefault(line.custom_id, number)) != number:
                    raise InputError(f"{where} has the same custom_id as line {twin}; give each its own")
                lines.append(line)
        except UnicodeError:
            raise InputError(f"{path} is not UTF-8 after line {number}; convert it") from None
        except (msgspec.ValidationError, ValueError, RecursionError) as error:
            why = getattr(error, "msg", error)
            raise InputError(f"{path}, line {number} is not a request of a batch: {why}") from None
    return lines


@contextmanager
def results_of(path: Path, lines: Sequence[Line]) -> Iterator[tuple[set[str], BinaryIO, BinaryIO]]:
    """Open the files of results and errors beside a batch file, for this process alone. Yield the ids that
    have a result, and both files. InputError if another program wrote one of them.

    Errors are removed. If the results have a line that a crash has cut off, or one of a request that has
    changed since, the file is renamed, and the results that are still current are copied.
    """
    name, asked = path.name.removesuffix(".jsonl"), {line.custom_id: line.digest for line in lines}
    kept, old, wrong = (
        path.with_name(f"{name}.{each}.jsonl") for each in ("results", "results.old", "errors")
    )
    for each in (kept, wrong):
        if each.exists() and not each.is_file():
            raise InputError(f"{each} is not a regular file; move it away")
    try:
        with wrong.open("a+b") as errors:
            errors.seek(LOCKED_BYTE)
            if not lock_now(errors.fileno()):
                raise InputError(f"another command runs {path}; wait for its end")
            deque(_written(wrong, path, {}), maxlen=0)
            current = {custom_id: len(text) for text, custom_id in _written(kept, path, asked)}
            is_whole = not kept.exists() or sum(current.values()) == kept.stat().st_size
            if not is_whole:
                deque(_written(old, path, {}), maxlen=0)
                kept.replace(old)
            errors.seek(0)
            errors.truncate()
            with kept.open("ab") as results:
                if not is_whole:
                    results.writelines(text for text, _ in _written(old, path, asked))
                    results.flush()
                yield asked.keys() & current, results, errors
    except OSError as error:
        raise InputError(f"cannot write {error.filename or kept}: {error.strerror or error}") from None


def _written(path: Path, batch_file: Path, asked: Mapping[str, str]) -> Iterator[tuple[bytes, str]]:
    """Yield each whole line of results or errors with its custom_id, except where `asked` has another digest.

    InputError if another command wrote them, or this one for another batch file that exists.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for text in file:
            if not text.endswith(b"\n") and (text.startswith(BEGINNING) or BEGINNING.startswith(text)):
                return
            try:
                record = json.loads(text)
                custom_id, digest = str(record["custom_id"]), str(record["request_sha256"])
                origin = batch_file.with_name(record["batch_file"])
            except (ValueError, KeyError, TypeError, RecursionError):
                raise InputError(f"{path} was not written by clairvoyant batch; move it away") from None
            if origin.name != batch_file.name and origin.exists():
                raise InputError(f"{path} belongs to {origin}; rename {batch_file}")
            if asked.get(custom_id, digest) == digest:
                yield text, custom_id


def add_line(file: BinaryIO, record: dict[str, Any]) -> None:
    """Write a record. ClairvoyantError if the file has been removed, replaced or changed by anyone else:
    results would be missing.
    """
    path, text = Path(file.name), encoded(record) + b"\n"
    end = file.tell() + len(text)
    file.write(text)
    file.flush()
    if file.tell() != end or not (path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno()))):
        raise ClairvoyantError(f"{file.name} was removed, replaced or changed; run the same command again")


def encoded(value: object, *, sort_keys: bool = False) -> bytes:
    """Return JSON in UTF-8. A lone surrogate, such as half an emoji, becomes its escape."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=sort_keys)
    return text.encode("utf-8", "backslashreplace")
