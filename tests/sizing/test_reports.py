"""The memory model against engines that were measured and against public reports: docs/memory.md has the table."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from packaging.version import Version

from tests.cases import read_cases
from winhost.model.units import GiB, MiB, parse_size
from winhost.model.workload import (
    Model,
    Parallel,
    Quantization,
    Shape,
)
from winhost.sizing.engines import CUDA_GRAPHS, Engine, MemoryPart, engine
from winhost.sizing.memories import share_holds

ROOT = Path(__file__).parents[2]
REPORTS = read_cases(ROOT / "tests/data/memory/reports.yaml")
MEASURED = read_cases(ROOT / "tests/data/memory/measured.yaml")
LINES = {"weights": "weights", "activations": "activations", "kv": "KV cache", "graphs": CUDA_GRAPHS, "nccl": "NCCL"}
H200 = {"vllm": "0.24.0", "gpu": 143_771}
SEEN_BY_CUDA = 139.88  # GiB: two starts of one engine differ by 78.61 GiB of KV cache, and by 0.562 of it


def modelled(row: Mapping[str, Any], models: Mapping[str, Any]) -> Engine:
    said = models[row["model"]]
    shape = said.get("shape", {})
    weights = f"{row['weights']} GiB" if "weights" in row else said.get("weights")
    kv = f"{row['kv']} GiB" if "kv" in row else said.get("kv")
    model = Model(
        name="m",
        id="m",
        parameters=said.get("parameters"),
        quantization=Quantization(said["quantization"]) if "quantization" in said else None,
        unquantized=tuple(said["unquantized"]) if "unquantized" in said else None,
        weights=None if weights is None else parse_size(weights),
        shape=Shape(**shape),
        context=row.get("context", 4096),
        kv=None if kv is None else parse_size(kv),
        parallel=Parallel(row.get("tensor", 1), row.get("pipeline", 1)),
    )
    found = engine(model, row["gpu"] * MiB, Version(row["vllm"]))
    assert not found.missing
    return without_graphs(found) if row.get("eager") else found


def without_graphs(found: Engine) -> Engine:
    return replace(found, stays=tuple(part for part in found.stays if part.what != CUDA_GRAPHS))


def verdict(row: Mapping[str, Any]) -> bool | None:
    found = modelled(row, REPORTS["models"])
    return share_holds(found, row["gpu"] * MiB, Fraction(str(row["share"])), Version(row["vllm"]))


def test_no_report_is_confidently_judged_wrong() -> None:
    wrong = {
        number for number, row in REPORTS["reports"].items() if verdict(row) not in (None, row["outcome"] == "starts")
    }
    assert wrong == set()


def seen() -> Iterator[tuple[str, MemoryPart, float]]:
    """Each line that somebody saw, in GiB, with the line that is computed for it."""
    said = [(row, REPORTS["models"]) for row in (*REPORTS["reports"].values(), *REPORTS["lines"].values())]
    for row, models in (*said, *((row, MEASURED["models"]) for row in MEASURED["lines"].values())):
        parts = by_name(modelled(row, models))
        yield from ((LINES[key], parts[LINES[key]], size) for key, size in row.get("seen", {}).items())
    for row in MEASURED["starts"].values():
        whole = row["weights"] * row.get("tensor", 1)
        yield from _measured(row, by_name(modelled({**H200, **row, "weights": whole}, MEASURED["models"])))


def by_name(found: Engine) -> dict[str, MemoryPart]:
    return {part.what: part for part in (*found.turn, *found.stays)}


def _measured(row: Mapping[str, Any], parts: Mapping[str, MemoryPart]) -> Iterator[tuple[str, MemoryPart, float]]:
    graphs, inside = row["graphs"] or 0, row.get("runner") == "V1"
    share = row["share"] * SEEN_BY_CUDA
    yield "activations", parts["activations"], share - row["weights"] - row["kv"] - (graphs if inside else 0)
    if graphs:
        yield CUDA_GRAPHS, parts[CUDA_GRAPHS], graphs
    beside = row["used"] / 1024 - share - (0 if inside else graphs)
    context = parts["CUDA context"]
    if "NCCL" in parts:
        context = replace(context, bytes=context.bytes + parts["NCCL"].bytes)
    yield "CUDA context", context, beside


def errors() -> dict[str, list[tuple[float, float]]]:
    """By line, the errors of the lower and of the upper end in percent of what was seen."""
    found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for what, part, size in seen():
        least, most = (round(100 * (end / GiB - size) / size, 1) + 0.0 for end in (part.least, part.bytes))
        found[what].append((least, most))
    return dict(found)


def test_no_line_was_seen_further_than_rounding_outside_its_range() -> None:
    outside = [(what, each) for what, found in errors().items() for each in found if each[0] > 1.5 or each[1] < -1.5]
    assert outside == []


def table() -> list[str]:
    """The rows of docs/memory.md."""
    rows = []
    for what, found in errors().items():
        lows, highs = zip(*found, strict=True)
        low, high = (f"{min(ends):+.1f} to {max(ends):+.1f} %" for ends in (lows, highs))
        rows.append(f"| {what} | {len(found)} | {low} | {high} |")
    return rows


def test_the_documented_errors_are_those_that_are_computed() -> None:
    text = (ROOT / "docs/memory.md").read_text(encoding="utf-8")
    assert [row for row in table() if row not in text] == []
    prose = " ".join(text.split())
    judged = [(verdict(row), row["outcome"] == "starts") for row in REPORTS["reports"].values()]
    right = sum(found is starts for found, starts in judged)
    doubtful = sum(found is None for found, _ in judged)
    assert f"Of {len(judged)} reports {right} are judged right, {doubtful} unverified, and none wrong." in prose
