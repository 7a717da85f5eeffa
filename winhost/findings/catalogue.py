"""Catalogues: typed rows of YAML with their evidence, read when the first row is requested."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.resources.abc import Traversable
from typing import Any, TypeVar

from winhost.findings.condition import Condition
from winhost.model.catalogue_file import load_catalogue
from winhost.model.once import once
from winhost.model.reason import Confidence, Evidence, Kind, Severity

R = TypeVar("R")

# The confidence of a piece of evidence that does not state its own: one person's report alone is `low`.
CONFIDENCE: Mapping[Kind, Confidence] = {
    "vendor-doc": "high",
    "source": "high",
    "measured": "high",
    "issue": "medium",
    "inferred": "low",
}
INLINE_EVIDENCE: dict[str, Evidence] = {}
"""The evidence that rows define inline, by id, of all rows read so far."""


class Catalogue(Mapping[str, R]):
    """The rows of a file, or of all files of a folder, by key and in their order.

    Keys of a file: `_all` has the defaults of its rows, `_basis` those of evidence that a row defines inline, and
    `_linters` the codes of each linter that shares the rows (knowledge/lint_codes.py). `repeats` in a row names another
    row whose keys it takes over, except those that it sets itself.
    """

    def __init__(self, path: Traversable, row: Callable[[str, dict[str, Any]], R]) -> None:
        self._path, self._row = path, row

    @once
    def _rows(self) -> dict[str, R]:
        return {key: self._row(key, written) for key, written in _read(self._path).items()}

    def __getitem__(self, key: str) -> R:
        return self._rows()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows())

    def __len__(self) -> int:
        return len(self._rows())

    __hash__ = object.__hash__  # equal only to itself


def _read(path: Traversable) -> dict[str, dict[str, Any]]:
    """Read the untyped rows, file by file."""
    files = sorted(path.iterdir(), key=lambda file: file.name) if path.is_dir() else [path]
    rows_of_files = [_read_file(file) for file in files if file.name.endswith(".yaml")]
    rows = {key: row for rows in rows_of_files for key, row in rows.items()}
    if len(rows) < sum(map(len, rows_of_files)):
        raise ValueError(f"a key of {path.name}/ stands in two of its files")
    return {key: _expand_repeats(row, rows) for key, row in rows.items()}


def _expand_repeats(row: dict[str, Any], rows: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    expanded = {**rows[row["repeats"]], **row} if "repeats" in row else row
    return {key: value for key, value in expanded.items() if key != "repeats"}


def _read_file(file: Traversable) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = load_catalogue(file)
    shared, basis, _ = rows.pop("_all", {}), rows.pop("_basis", {}), rows.pop("_linters", None)
    if not (shared or basis):
        return rows
    return {key: _add_defaults(row, shared, basis) for key, row in rows.items()}


def _add_defaults(row: dict[str, Any], shared: Mapping[str, Any], basis: Mapping[str, Any]) -> dict[str, Any]:
    row = {**shared, **row}
    evidence = [each if isinstance(each, str) else {**basis, **each} for each in row.get("evidence", ())]
    return {**row, "evidence": evidence}


def parse_row(owner: str, row: Mapping[str, Any], texts: Iterable[str] = ()) -> dict[str, Any]:
    """Parse the severity, conditions and evidence (see `cite`) of a row of any catalogue, and turn its lists into
    tuples.

    texts: keys of lists that may be written as a single text.
    """
    parsed = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    parsed |= {name: (row[name],) for name in texts if isinstance(row.get(name), str)}
    parsed |= {name: Condition(row[name]) for name in ("when", "which", "none") if name in row}
    if "evidence" in row:
        parsed["evidence"] = cite(owner, row["evidence"])
    parsed |= {name: Severity(row[name]) for name in ("severity", "some") if name in row}
    return parsed


def cite(owner: str, written: Iterable[str | Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the ids of a row's evidence. A row writes an id of shared evidence, or defines evidence inline, which is
    then registered with an id made of its owner and number. Raises ValueError for an id that has other content.
    """
    ids = []
    for number, each in enumerate(written, start=1):
        if isinstance(each, str):
            ids.append(each)
            continue
        row = dict(each)
        key = row.pop("id", f"{owner}#{number}")
        piece = parse_evidence(key, row)
        if INLINE_EVIDENCE.setdefault(key, piece) != piece:
            raise ValueError(f"{owner}: evidence of another row is named {key} already, with other content")
        ids.append(key)
    return tuple(ids)


def parse_evidence(key: str, row: Mapping[str, Any]) -> Evidence:
    """Parse a row of evidence."""
    return Evidence(key, **{"confidence": CONFIDENCE[row["kind"]], **row, "seen": str(row["seen"])})
