"""Count the tensors of a model by the headers of its safetensors files, which are a few kilobytes each."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from winhost.core.dataclass import dataclass
from winhost.hub.repositories import ModelRepository, listing_error
from winhost.model.errors import WinhostError
from winhost.model.units import Bytes, KiB, MiB
from winhost.web.http_client import parse_json

INDEX = "model.safetensors.index.json"
_SINGLE_FILE = "model.safetensors"
_FIRST_READ: Bytes = 128 * KiB
_LARGEST_HEADER: Bytes = 32 * MiB
_LARGEST_INDEX: Bytes = 32 * MiB
_MAX_FILES = 512
_PARALLEL_REQUESTS = 8
_INTEGER_TYPES = ("BOOL", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64")

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Weights:
    """parameters: their count for each type, by safetensors' names; bytes: of all tensors; head: the model has an
    output embedding of its own, next to the input embedding; files: their number.
    """

    parameters: Mapping[str, int]
    bytes: Bytes
    head: bool
    files: int

    @property
    def total(self) -> int:
        """The number of parameters. Integers do not count: in a model that is not quantized they are positions and the
        like.
        """
        return sum(count for kind, count in self.parameters.items() if kind not in _INTEGER_TYPES)


def weights_of(repository: ModelRepository, files: Mapping[str, Bytes], report: Progress) -> Weights | None:
    """Count the tensors; None if there are no safetensors. files: sizes by path. Raises WinhostError (NotListed)."""
    named = weight_files(repository, files)
    if not named:
        return None
    counts: Counter[str] = Counter()
    total, head, done = 0, False, 0
    with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
        for header in pool.map(lambda path: _header(repository, path, files[path]), named):
            for name, kind, count, length in _tensors(repository, header):
                counts[kind] += count
                total += length
                head = head or name.endswith(("lm_head.weight", "embed_out.weight")) or name == "output.weight"
            done += 1
            if len(named) > _PARALLEL_REQUESTS:
                report(done, len(named))
    return Weights(dict(counts), total, head, len(named))


def weight_files(repository: ModelRepository, files: Mapping[str, Bytes]) -> list[str]:
    """List the files that an engine loads: those of the index, if there is one, because some repositories have all
    weights twice.
    """
    if INDEX in files:
        listed = repository.document(INDEX, _LARGEST_INDEX).get("weight_map")
        named = sorted({str(path) for path in listed.values()}) if isinstance(listed, dict) else []
        if not named or not files.keys() >= set(named) or len(named) > _MAX_FILES:
            raise listing_error(repository.model, f"{INDEX} names files that are not there", "Do not use this revision")
        return named
    if _SINGLE_FILE in files:
        return [_SINGLE_FILE]
    found = [path for path in files if path.endswith(".safetensors") and "/" not in path]
    whole = [path for path in found if not path.startswith(("consolidated", "adapter_"))]
    return sorted(whole)[:_MAX_FILES]


def _header(repository: ModelRepository, path: str, size: Bytes) -> dict[str, Any]:
    """Read the header of a file: eight bytes with its length, then as much JSON."""
    begin = repository.part(path, 0, min(_FIRST_READ, size)) if size else b""  # an HTTP range cannot be empty
    length = int.from_bytes(begin[:8], "little")
    if len(begin) < 8 or not 2 <= length <= min(_LARGEST_HEADER, size - 8):
        raise _unusable(repository, path)
    if len(begin) < 8 + length:
        begin += repository.part(path, len(begin), 8 + length)
    try:
        header = parse_json(begin[8 : 8 + length])
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise _unusable(repository, path)
    return header


def _tensors(repository: ModelRepository, header: Mapping[str, Any]) -> Iterable[tuple[str, str, int, Bytes]]:
    """Yield the name of each tensor, its type, the count of its numbers and its bytes."""
    for name, value in header.items():
        if name == "__metadata__":
            continue
        fields = value if isinstance(value, dict) else {}
        kind, shape, span = fields.get("dtype"), _counts(fields.get("shape")), _counts(fields.get("data_offsets"))
        if not isinstance(kind, str) or shape is None or span is None or len(span) != 2:
            raise _unusable(repository, name)
        count, length = math.prod(shape), span[1] - span[0]
        if count > 8 * max(length, 0):  # less than one bit for each number
            raise _unusable(repository, name)
        yield name, kind, count, length


def _counts(value: Any) -> list[int] | None:
    whole = isinstance(value, list) and len(value) <= 8 and all(type(each) is int and each >= 0 for each in value)
    return value if whole else None


def _unusable(repository: ModelRepository, path: str) -> WinhostError:
    why = f"the header of {path[:200]} cannot be read as safetensors"
    return listing_error(repository.model, why, "Do not use this revision")
