"""Whole models, packed and unpacked on the GPU. A file gets its name once it is complete."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import torch

from winhost_weights import container
from winhost_weights.container import BadContainer
from winhost_weights.loading import Codec, decoded

MIN_PACKED_SIZE = 64 << 10  # smaller tensors stay as they are
MAX_RATIO = 0.97
Report = Callable[[str, int, int], object]  # a file, its bytes before, its bytes after


def pack(source: Path, target: Path, report: Report) -> None:
    """Goes on where it was interrupted: files that are there and right stay."""
    files = container.weights(source)
    for path in files:
        if container.is_packed(path):
            raise BadContainer(f"{path.name} is packed already")
    _prepare_target(source, target, {path.name: path.stat().st_size for path in files})
    codec = Codec()
    for path in files:
        packed = target / path.name
        if not _is_packed(path, packed):
            with container.named(path), _replace_file(packed) as out:
                _pack(path, out, codec)
        report(path.name, path.stat().st_size, packed.stat().st_size)


def unpack(source: Path, target: Path, report: Report) -> None:
    files = [container.read(path) for path in container.weights(source)]
    _prepare_target(source, target, {file.path.name: file.original_size for file in files})
    for file in files:
        plain = target / file.path.name
        if not (plain.exists() and _digest(plain) == file.sha256):
            with _replace_file(plain) as out:
                out.write(file.header)
                for data in _verified(file):
                    out.write(data)
        report(file.path.name, file.path.stat().st_size, plain.stat().st_size)


def verify(source: Path, report: Report) -> None:
    """Decode every tensor and compare it with what was packed."""
    for path in container.weights(source):
        file = container.read(path)
        for _ in _verified(file):
            pass
        report(path.name, path.stat().st_size, file.original_size)


def replace(source: Path, target: Path, report: Report) -> None:
    """Delete each original file once its packed one, read back from the disk, decodes to exactly it."""
    for path in container.weights(source):
        if path.is_symlink():  # as in a hub's cache, where the link alone would go, and no room come of it
            raise BadContainer(f"{path.name} is a link, and stays: name the folder with the files themselves")
        packed = container.read(target / path.name)
        for _ in _verified(packed):
            pass
        if packed.sha256 != _digest(path):
            raise BadContainer(f"{path.name} is another file than the one that was packed, and stays")
        sizes = path.stat().st_size, packed.path.stat().st_size
        _sync_folder(target)
        path.unlink()
        report(path.name, *sizes)


def _sync_folder(folder: Path) -> None:
    """Bring the names of a folder to the disk: the contents of its files are there."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _prepare_target(source: Path, target: Path, sizes: Mapping[str, int]) -> None:
    """sizes: of the files to write, at most. What is not weights is copied."""
    if target.resolve() == source.resolve():
        raise BadContainer("the result needs a folder of its own: the original stays until that is checked")
    there = next(folder for folder in (target, *target.absolute().parents) if folder.is_dir())
    needed = sum(size for name, size in sizes.items() if not (target / name).exists())
    free = shutil.disk_usage(there).free
    if needed > free:
        raise BadContainer(f"{there} has {free >> 20} MiB free, and this can take {needed >> 20} MiB")
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_file() and path.suffix not in (".safetensors", ".whl"):
            shutil.copy2(path, target / path.name)


@contextmanager
def _replace_file(path: Path) -> Iterator[BinaryIO]:
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as out:
        yield out
        out.flush()
        os.fsync(out.fileno())
    partial.replace(path)


def _digest(path: Path) -> str:
    digest = sha256()
    with path.open("rb") as file:
        while part := file.read(8 << 20):
            digest.update(part)
    return digest.hexdigest()


def _is_packed(path: Path, packed: Path) -> bool:
    try:
        return container.read(packed).sha256 == _digest(path)
    except (FileNotFoundError, BadContainer):
        return False


def _pack(path: Path, out: BinaryIO, codec: Codec) -> None:
    whole, rows = sha256(), []
    with path.open("rb") as file:
        original = container.read_header(file, path.stat().st_size)
        whole.update(original)
        room = container.room_for_header(original)
        out.seek(room)
        for name, dtype, _, _, size in container.original_tensors(original):
            raw = bytearray(size)
            if file.readinto(raw) != size:
                raise BadContainer(f"{path.name} is cut off in tensor {name!r}")
            whole.update(raw)
            packed = _pack_chunks(raw, codec) if container.SIZES[dtype] == 2 and size >= MIN_PACKED_SIZE else None
            parts = packed or [bytes(raw[at : at + container.CHUNK]) for at in range(0, size, container.CHUNK)]
            for part in parts:
                out.write(part.ljust(container.padded(len(part)), b"\0"))
            kind = container.ANS if packed else container.RAW
            rows.append((name, kind, [*map(len, parts)], sha256(raw).hexdigest()))
        if file.read(1):
            raise BadContainer(f"{path.name} has more than its header says")
    out.seek(0)
    out.write(container.write_header(original, whole.hexdigest(), rows, room))


def _pack_chunks(raw: bytearray, codec: Codec) -> list[bytes] | None:
    """Pack a tensor's chunks; None if its first one does not shrink enough, so that the tensor stays plain."""
    whole, parts = torch.frombuffer(raw, dtype=torch.uint8), []
    for at in range(0, len(raw), container.CHUNK):
        chunk = whole[at : at + container.CHUNK].cuda()
        packed = codec.encode(chunk)
        if not at and packed.numel() > MAX_RATIO * chunk.numel():
            return None
        back = torch.empty_like(chunk)
        codec.decode(packed, back)
        if not torch.equal(back, chunk):
            raise BadContainer("nvCOMP decoded something else than it had packed")
        parts.append(packed.cpu().numpy().tobytes())
    return parts


def _verified(file: container.Container) -> Iterator[bytes]:
    """The bytes of each tensor, of which none is given before it is known to be right."""
    whole = sha256(file.header)
    for tensor, data in decoded([file], keep=False):
        found = data.cpu().numpy().tobytes()
        if sha256(found).hexdigest() != tensor.sha256:
            raise BadContainer(f"{file.path.name}: tensor {tensor.name!r} is damaged")
        whole.update(found)
        yield found
    if whole.hexdigest() != file.sha256:
        raise BadContainer(f"{file.path.name}: its tensors are right, and the file of before was another")
