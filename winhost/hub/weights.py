"""The tensors of a model's weights by the headers of its safetensors files, a few kilobytes of each."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from winhost.core.dataclass import dataclass
from winhost.hub.repositories import ModelRepository, not_listed
from winhost.model.errors import WinhostError
from winhost.model.units import Bytes, KiB, MiB
from winhost.web.http_client import parse_json

INDEX = "model.safetensors.index.json"
_ONE = "model.safetensors"
_FIRST: Bytes = 128 * KiB
_LARGEST_HEADER: Bytes = 32 * MiB
_LARGEST_INDEX: Bytes = 32 * MiB
_MOST_FILES = 512
_AT_ONCE = 8
_WHOLE_NUMBERS = ("BOOL", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64")

Tell = Callable[[int, int], None]


@dataclass(frozen=True)
class Weights:
    """parameters: numbers by their type, as safetensors calls it; bytes: of all tensors; head: there is a table of
    embeddings at the end, besides that at the beginning.
    """

    parameters: Mapping[str, int]
    bytes: Bytes
    head: bool
    files: int

    @property
    def total(self) -> int:
        """The parameters. Whole numbers are positions and the like, where nothing is quantized."""
        return sum(count for kind, count in self.parameters.items() if kind not in _WHOLE_NUMBERS)


def weights_of(repository: ModelRepository, files: Mapping[str, Bytes], tell: Tell) -> Weights | None:
    """files: sizes by path. None where there are no safetensors. Raises WinhostError (NotListed)."""
    named = weight_files(repository, files)
    if not named:
        return None
    counts: Counter[str] = Counter()
    total, head, done = 0, False, 0
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for header in pool.map(lambda path: _header(repository, path, files[path]), named):
            for name, kind, count, length in _tensors(repository, header):
                counts[kind] += count
                total += length
                head = head or name.endswith(("lm_head.weight", "embed_out.weight")) or name == "output.weight"
            done += 1
            if len(named) > _AT_ONCE:
                tell(done, len(named))
    return Weights(dict(counts), total, head, len(named))


def weight_files(repository: ModelRepository, files: Mapping[str, Bytes]) -> list[str]:
    """List the files that an engine loads: those of the index where there is one, because some repositories have all
    weights twice.
    """
    if INDEX in files:
        listed = repository.document(INDEX, _LARGEST_INDEX).get("weight_map")
        named = sorted({str(path) for path in listed.values()}) if isinstance(listed, dict) else []
        if not named or not files.keys() >= set(named) or len(named) > _MOST_FILES:
            raise not_listed(repository.model, f"{INDEX} names files that are not there", "Do not use this revision")
        return named
    if _ONE in files:
        return [_ONE]
    found = [path for path in files if path.endswith(".safetensors") and "/" not in path]
    whole = [path for path in found if not path.startswith(("consolidated", "adapter_"))]
    return sorted(whole)[:_MOST_FILES]


def _header(repository: ModelRepository, path: str, size: Bytes) -> dict[str, Any]:
    """Read the header of a file: eight bytes with its length, then as much JSON."""
    begin = repository.part(path, 0, min(_FIRST, size)) if size else b""  # no range asks for nothing
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
    """The name of each tensor, its type, its count of numbers and its bytes."""
    for name, said in header.items():
        if name == "__metadata__":
            continue
        fields = said if isinstance(said, dict) else {}
        kind, shape, span = fields.get("dtype"), _counts(fields.get("shape")), _counts(fields.get("data_offsets"))
        if not isinstance(kind, str) or shape is None or span is None or len(span) != 2:
            raise _unusable(repository, name)
        count, length = math.prod(shape), span[1] - span[0]
        if count > 8 * max(length, 0):  # less than a bit for each
            raise _unusable(repository, name)
        yield name, kind, count, length


def _counts(value: Any) -> list[int] | None:
    whole = isinstance(value, list) and len(value) <= 8 and all(type(each) is int and each >= 0 for each in value)
    return value if whole else None


def _unusable(repository: ModelRepository, path: str) -> WinhostError:
    why = f"the header of {path[:200]} cannot be read as safetensors"
    return not_listed(repository.model, why, "Do not use this revision")
