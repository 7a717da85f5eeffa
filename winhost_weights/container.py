"""A packed file is a safetensors file: each tensor is bytes (U8), and its metadata says how to get the original back.

The metadata holds a table: the original header as it was, the codec and the packed size of each chunk, and the SHA-256
of the original bytes of each tensor and of the file. Each chunk starts on a page, so that it can be read directly.
"""

import json
import math
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

PAGE = 4096
CHUNK = 32 << 20
MARK, DIGEST = "winhost.packed", "winhost.packed.sha256"
FORMAT = 1
ANS, RAW = "ans-f2", "raw"
CODECS = (ANS, RAW)
MAX_HEADER = 100_000_000  # as safetensors itself allows
SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8,
}  # fmt: skip


class BadContainer(ValueError):
    """The file is not what a packed file has to be; nothing of it may be used."""


@dataclass(frozen=True)
class Tensor:
    """size: of the original; sizes: of its packed chunks; start: where the first one is in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    codec: str
    sizes: tuple[int, ...]
    start: int
    sha256: str

    def chunks(self, chunk: int) -> Iterator[tuple[int, int, int, int]]:
        """Offset in the file, packed size, offset in the tensor, size there."""
        offset = self.start
        for number, packed in enumerate(self.sizes):
            done = number * chunk
            yield offset, packed, done, min(chunk, self.size - done)
            offset += padded(packed)


@dataclass(frozen=True)
class Container:
    path: Path
    header: bytes  # of the original, with its length
    sha256: str  # of the original file
    chunk: int
    tensors: tuple[Tensor, ...]

    @property
    def original_size(self) -> int:
        return len(self.header) + sum(tensor.size for tensor in self.tensors)


def padded(size: int) -> int:
    return -(-size // PAGE) * PAGE


def original_tensors(header: bytes) -> list[tuple[str, str, tuple[int, ...], int, int]]:
    """Name, dtype, shape, offset and size of each tensor, in the order of their bytes."""
    found = []
    for name, each in _json(header[8:]).items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape, (start, end) = each["dtype"], tuple(each["shape"]), each["data_offsets"]
            fits = math.prod(shape) * SIZES[dtype] == end - start
        except (KeyError, TypeError, ValueError):
            raise BadContainer(f"tensor {name!r} has no dtype, shape and offsets that can be read") from None
        if not fits:
            raise BadContainer(f"tensor {name!r}: its shape does not take the bytes that it has")
        found.append((name, dtype, shape, start, end - start))
    found.sort(key=lambda each: (each[3], each[4]))
    at = 0
    for name, _, _, start, size in found:
        if start != at:
            raise BadContainer(f"tensor {name!r} does not follow the one before it")
        at += size
    return found


def read_header(file: BinaryIO, size: int) -> bytes:
    first = file.read(8)
    length = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
    if not 0 < length <= min(MAX_HEADER, size - 8):
        raise BadContainer("this is no safetensors file, or it is cut off in its header")
    return first + file.read(length)


def is_packed(path: Path) -> bool:
    with named(path), path.open("rb") as file:
        return MARK in _metadata(read_header(file, path.stat().st_size))


def room_for_header(original: bytes) -> int:
    """The most bytes that the header may take. It stands before the data and is written last."""
    most = [
        (name, max(CODECS, key=len), [2 * CHUNK] * -(-size // CHUNK), "f" * 64)
        for name, _, _, _, size in original_tensors(original)
    ]
    return len(write_header(original, "f" * 64, most, 0))


def write_header(
    original: bytes, whole: str, tensors: Sequence[tuple[str, str, Sequence[int], str]], room: int
) -> bytes:
    """whole: SHA-256 of the file; tensors: name, codec, packed sizes and SHA-256, in the order of their bytes."""
    rows = {name: {"codec": codec, "sizes": [*sizes], "sha256": digest} for name, codec, sizes, digest in tensors}
    table = json.dumps(
        {"format": FORMAT, "chunk": CHUNK, "header": original[8:].decode(), "sha256": whole, "tensors": rows},
        separators=(",", ":"),
    )
    header: dict[str, Any] = {"__metadata__": {MARK: table, DIGEST: sha256(table.encode()).hexdigest()}}
    at = 0
    for name, _, sizes, _ in tensors:
        end = at + sum(map(padded, sizes))
        header[name] = {"dtype": "U8", "shape": [end - at], "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(max(room, padded(8 + len(text))) - 8)
    return _prefix_length(text)


def _prefix_length(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def weights(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    if not folder.is_dir():
        raise BadContainer(f"{folder} is no folder: name the one with the model's *.safetensors")
    if not files:
        raise BadContainer(f"{folder} has no *.safetensors")
    return files


def read(path: Path) -> Container:
    """Checked against the file and against itself, before anything of it is used."""
    try:
        with named(path):
            return _read(path)
    except (ArithmeticError, AttributeError, KeyError, TypeError):
        raise BadContainer(f"{path.name}: its table is not as winhost writes it") from None


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Name the file in its errors, because a model has many."""
    try:
        yield
    except BadContainer as error:
        if str(error).startswith(path.name):
            raise
        raise BadContainer(f"{path.name}: {error}") from None


def _read(path: Path) -> Container:
    size = path.stat().st_size
    with path.open("rb") as file:
        header = read_header(file, size)
    text = _metadata(header).get(MARK)
    if text is None:
        raise BadContainer(f"{path.name} is not packed")
    if sha256(text.encode()).hexdigest() != _metadata(header).get(DIGEST) or len(header) % PAGE:
        raise BadContainer(f"{path.name}: its header was changed after it was packed")
    table = _json(text.encode())
    if table.get("format") != FORMAT:
        raise BadContainer(f"{path.name}: its format is {table.get('format')}, and only {FORMAT} is known here")
    original = _prefix_length(table["header"].encode())
    held = {name: each for name, each in _json(header[8:]).items() if name != "__metadata__"}
    tensors, at = [], len(header)
    for name, dtype, shape, _, length in original_tensors(original):
        row = table["tensors"][name]
        tensor = Tensor(name, dtype, shape, length, row["codec"], tuple(row["sizes"]), at, row["sha256"])
        _check(tensor, table["chunk"], path.name)
        end = at + sum(map(padded, tensor.sizes))
        if held.pop(name, {}).get("data_offsets") != [at - len(header), end - len(header)]:
            raise BadContainer(f"{path.name}: tensor {name!r} lies elsewhere than its table says")
        tensors.append(tensor)
        at = end
    if held:
        raise BadContainer(f"{path.name}: its table does not have tensor {min(held)!r}")
    if at != size:
        raise BadContainer(f"{path.name} should have {at} bytes, and has {size}: it was cut off, or changed")
    return Container(path, original, table["sha256"], table["chunk"], tuple(tensors))


def _check(tensor: Tensor, chunk: int, file: str) -> None:
    if tensor.codec not in CODECS:
        raise BadContainer(
            f"{file}: tensor {tensor.name!r} has the codec {tensor.codec}, of which nothing is known here"
        )
    if len(tensor.sizes) != -(-tensor.size // chunk) or min(tensor.sizes, default=1) < 1:
        raise BadContainer(f"{file}: tensor {tensor.name!r} has other chunks than its size needs")
    if tensor.codec == RAW and sum(tensor.sizes) != tensor.size:
        raise BadContainer(f"{file}: tensor {tensor.name!r} is not compressed, and has another size than before")


def _metadata(header: bytes) -> dict[str, str]:
    found = _json(header[8:]).get("__metadata__", {})
    return found if isinstance(found, dict) else {}


def _json(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise BadContainer("the header is no JSON") from None
    if not isinstance(found, dict):
        raise BadContainer("the header is no JSON object")
    return found
