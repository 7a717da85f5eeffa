"""Packed files without a GPU: every tensor as it is."""

import json
import struct
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from winhost_weights.container import CHUNK, RAW, original_tensors, padded, room_for_header, write_header

Tensors = Mapping[str, tuple[str, list[int], bytes]]
ONE: Tensors = {
    "b": ("BF16", [300, 400], bytes(range(240)) * 1000),
    "a": ("F32", [7], b"1234567" * 4),
    "empty": ("BF16", [0], b""),
    "scalar": ("F32", [], b"\0\1\2\3"),
}


def plain(tensors: Tensors) -> bytes:
    """A safetensors file."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values())


def packed(path: Path, tensors: Tensors = ONE, codec: str = RAW) -> Path:
    whole = plain(tensors)
    header = whole[: len(whole) - sum(len(data) for _, _, data in tensors.values())]
    rows, body = [], b""
    for name, _, _, _, size in original_tensors(header):
        data = tensors[name][2]
        parts = [data[at : at + CHUNK] for at in range(0, size, CHUNK)]
        body += b"".join(part.ljust(padded(len(part)), b"\0") for part in parts)
        rows.append((name, codec, [*map(len, parts)], sha256(data).hexdigest()))
    path.write_bytes(write_header(header, sha256(whole).hexdigest(), rows, room_for_header(header)) + body)
    return path
