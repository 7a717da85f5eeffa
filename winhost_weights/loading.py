"""Tensors of packed files on the GPU: reading, copying and decoding overlap, and memory is bounded.

Beside a tensor, a load holds one packed chunk on the GPU and one pinned buffer for each thread in host memory.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from winhost_weights.container import ANS, BadContainer, Container, Tensor, read
from winhost_weights.reading import Extent, Reader, Slot

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F64": torch.float64,
}


class Codec:
    """nvCOMP on the current CUDA stream, so that it needs no synchronization with other work on that stream."""

    def __init__(self) -> None:
        from nvidia import nvcomp

        self._nvcomp, self._stream = nvcomp, torch.cuda.current_stream()
        self._codec = nvcomp.Codec(algorithm="ANS", data_type="<f2", cuda_stream=self._stream.cuda_stream)
        self._configs: dict[int, Any] = {}

    def encode(self, raw: torch.Tensor) -> torch.Tensor:
        packed = self._codec.encode(self._array(raw))
        self._stream.synchronize()
        return torch.as_tensor(packed, device="cuda").view(torch.uint8).reshape(-1)

    def decode(self, packed: torch.Tensor, out: torch.Tensor) -> None:
        """out: as long as the original data."""
        source, size = self._array(packed), out.numel()
        if size not in self._configs:  # read off the data once, because that makes the host wait for the stream
            self._configs[size] = self._codec.decompression_config(source)
        self._codec.decode(source, out=self._array(out), decompression_config=self._configs[size])

    def _array(self, tensor: torch.Tensor) -> Any:
        return self._nvcomp.as_array(tensor, self._stream.cuda_stream)


def tensors(paths: Sequence[Path], *, keep: bool, threads: int | None = None) -> Iterator[tuple[str, torch.Tensor]]:
    """keep: leave the files in the page cache; threads: as in Reader."""
    for tensor, data in decoded([read(path) for path in paths], keep=keep, threads=threads):
        if tensor.dtype not in DTYPES:
            raise BadContainer(f"tensor {tensor.name!r} is of type {tensor.dtype}, which cannot be loaded")
        yield tensor.name, data.view(DTYPES[tensor.dtype]).reshape(tensor.shape)


def decoded(
    files: Sequence[Container], *, keep: bool, threads: int | None = None
) -> Iterator[tuple[Tensor, torch.Tensor]]:
    """Yield the bytes of each tensor, in the order of the files."""
    extents = [
        Extent(file.path, offset, packed)
        for file in files
        for tensor in file.tensors
        for offset, packed, _, _ in tensor.chunks(file.chunk)
    ]
    codec, reader = Codec(), Reader(extents, _pinned, keep=keep, threads=threads)
    staged = torch.empty(max((each.size for each in extents), default=0), dtype=torch.uint8, device="cuda")
    slots = iter(reader)
    try:
        for file in files:
            for tensor in file.tensors:
                data = torch.empty(tensor.size, dtype=torch.uint8, device="cuda")
                for _, packed, start, size in tensor.chunks(file.chunk):
                    slot, target = next(slots), data[start : start + size]
                    copied = staged[:packed] if tensor.codec == ANS else target
                    copied.copy_(slot.buffer[:packed], non_blocking=True)
                    _give_back(slot)
                    if tensor.codec == ANS:
                        codec.decode(copied, target)
                yield tensor, data
    finally:
        reader.close()


def _pinned(size: int) -> tuple[torch.Tensor, memoryview]:
    buffer = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    return buffer, memoryview(buffer.numpy()).cast("B")


def _give_back(slot: Slot) -> None:
    copied = torch.cuda.Event()
    copied.record()
    slot.done = copied.synchronize
    slot.free.set()


def fit_in_memory(paths: Sequence[Path]) -> bool:
    """Tell whether the files fit into half of the available memory. The engine needs the other half."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) << 10
    return sum(path.stat().st_size for path in paths) < available // 2
