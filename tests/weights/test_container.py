"""Packed files: what a safetensors reader sees, and what is refused before anything of a file is used."""

import json
import struct
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.rows import each_row
from tests.weights.packed import ONE, packed, plain
from winhost_weights.container import DIGEST, MARK, PAGE, BadContainer, original_tensors, read, weights


def header_of(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    found: dict[str, Any] = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    return found


def with_table(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """As somebody would who also writes the digest anew."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    table = json.loads(header["__metadata__"][MARK])
    change(table)
    text = json.dumps(table, separators=(",", ":"))
    header["__metadata__"] = {MARK: text, DIGEST: sha256(text.encode()).hexdigest()}
    path.write_bytes(data[:8] + json.dumps(header, separators=(",", ":")).encode().ljust(length) + data[8 + length :])


def test_it_is_a_safetensors_file_without_holes_whose_chunks_start_on_pages(tmp_path: Path) -> None:
    path = packed(tmp_path / "model.safetensors")
    entries = {name: each for name, each in header_of(path).items() if name != "__metadata__"}
    assert entries.keys() == ONE.keys()
    at = 0
    for each in entries.values():
        assert each["dtype"] == "U8"
        assert each["data_offsets"] == [at, at + each["shape"][0]]
        at = each["data_offsets"][1]
    assert path.stat().st_size == len(path.read_bytes()[: -at or None]) + at
    file = read(path)
    assert [offset % PAGE for tensor in file.tensors for offset, *_ in tensor.chunks(file.chunk)] == [0, 0, 0]


def test_everything_of_the_original_is_there(tmp_path: Path) -> None:
    path = packed(tmp_path / "model.safetensors")
    file, whole = read(path), plain(ONE)
    assert (file.sha256, file.original_size) == (sha256(whole).hexdigest(), len(whole))
    assert whole.startswith(file.header)
    data = path.read_bytes()
    for tensor in file.tensors:
        parts = b"".join(data[offset : offset + size] for offset, size, _, _ in tensor.chunks(file.chunk))
        assert (tensor.dtype, [*tensor.shape], parts) == ONE[tensor.name]


@each_row(
    ("damage", "says"),
    [
        (lambda data: data[:-1], "should have"),
        (lambda data: data[:100], "cut off in its header"),
        (lambda data: data[:4], "cut off in its header"),
        (lambda data: b"", "cut off in its header"),
        (lambda data: data + b"x", "should have"),
        (lambda data: data.replace(b"BF16", b"F166"), "was changed after it was packed"),
        (lambda data: data.replace(b'"raw"', b'"zip"').replace(b'\\"raw\\"', b'\\"zip\\"'), "was changed after it"),
        (lambda data: plain(ONE), "is not packed"),
        (lambda data: struct.pack("<Q", 5) + b"[1,2]", "no JSON object"),
        (lambda data: struct.pack("<Q", 4) + b"{{{{", "no JSON"),
    ],
)
def test_what_is_cut_off_or_edited_is_refused(damage: Callable[[bytes], bytes], says: str, tmp_path: Path) -> None:
    path = packed(tmp_path / "model.safetensors")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BadContainer, match=says):
        read(path)


@each_row(
    ("change", "says"),
    [
        (lambda table: table["tensors"]["b"].update(codec="lz4"), "has the codec lz4"),
        (lambda table: table["tensors"]["b"].update(sizes=[]), "other chunks than its size needs"),
        (lambda table: table["tensors"]["b"].update(sizes=[-1]), "other chunks than its size needs"),
        (lambda table: table["tensors"]["b"].update(sizes=[5000]), "another size than before"),
        (lambda table: table["tensors"]["b"].update(codec="ans-f2", sizes=[5000]), "lies elsewhere"),
        (lambda table: table["tensors"].pop("a"), "is not as winhost writes it"),
        (lambda table: table["tensors"].update(b=7), "is not as winhost writes it"),
        (lambda table: table.update(chunk=0), "is not as winhost writes it"),
        (lambda table: table.update(format=2), "its format is 2, and only 1"),
        (lambda table: table.update(header=table["header"].replace("[7]", "[8]")), "does not take the bytes"),
        (lambda table: table.update(header=table["header"].replace("BF16", "WHAT")), "no dtype, shape and offsets"),
    ],
)
def test_a_table_that_contradicts_the_file_is_refused(
    change: Callable[[dict[str, Any]], None], says: str, tmp_path: Path
) -> None:
    path = packed(tmp_path / "model.safetensors")
    with_table(path, change)
    with pytest.raises(BadContainer, match=says):
        read(path)


def test_an_original_with_a_hole_is_not_packed() -> None:
    text = json.dumps({"a": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}}).encode()
    with pytest.raises(BadContainer, match="does not follow the one before"):
        original_tensors(struct.pack("<Q", len(text)) + text)


def test_a_folder_without_weights_is_none(tmp_path: Path) -> None:
    with pytest.raises(BadContainer, match="has no"):
        weights(tmp_path)
