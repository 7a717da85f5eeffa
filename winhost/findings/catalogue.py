"""Catalogues: rows of YAML with their evidence, typed when the first of them is asked for."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.resources.abc import Traversable
from typing import Any, TypeVar

from winhost.findings.condition import Condition
from winhost.model.catalogue_file import load_catalogue
from winhost.model.once import once
from winhost.model.reason import Confidence, Evidence, Kind, Severity

R = TypeVar("R")

# How sure a piece of evidence makes, unless it says so itself: one person's report alone is `low`.
CONFIDENCE: Mapping[Kind, Confidence] = {
    "vendor-doc": "high",
    "source": "high",
    "measured": "high",
    "issue": "medium",
    "inferred": "low",
}
CITED: dict[str, Evidence] = {}
"""Evidence that is written within a row, by id, of all rows that were read."""


class Catalogue(Mapping[str, R]):
    """The rows of a file, or of all files of a folder, by their keys and in their order.

    `_all` is there what a row of the file has unless it says otherwise, `_basis` the same of evidence that is written
    within a row; `_linters` names the codes of linters that share the rows (knowledge/lint_codes.py). `repeats` names
    the row whose keys a row has but for those that it writes itself.
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

    __hash__ = object.__hash__  # each is a value of its own


def _read(path: Traversable) -> dict[str, dict[str, Any]]:
    """The rows as they are written, file by file."""
    found = sorted(path.iterdir(), key=lambda file: file.name) if path.is_dir() else [path]
    every = [_of_file(file) for file in found if file.name.endswith(".yaml")]
    together = {key: row for rows in every for key, row in rows.items()}
    if len(together) < sum(map(len, every)):
        raise ValueError(f"a key of {path.name}/ stands in two of its files")
    return {key: _whole(row, together) for key, row in together.items()}


def _whole(row: dict[str, Any], others: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    whole = {**others[row["repeats"]], **row} if "repeats" in row else row
    return {key: value for key, value in whole.items() if key != "repeats"}


def _of_file(file: Traversable) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = load_catalogue(file)
    shared, basis, _ = rows.pop("_all", {}), rows.pop("_basis", {}), rows.pop("_linters", None)
    if not (shared or basis):
        return rows
    return {key: _with_shared({**shared, **row}, basis) for key, row in rows.items()}


def _with_shared(row: dict[str, Any], basis: Mapping[str, Any]) -> dict[str, Any]:
    cited = [each if isinstance(each, str) else {**basis, **each} for each in row.get("evidence", ())]
    return {**row, "evidence": cited}


def typed(owner: str, row: Mapping[str, Any], texts: Iterable[str] = ()) -> dict[str, Any]:
    """A row of any catalogue with its severity, its conditions, its evidence (see `cite`) and tuples for its lists.
    texts: lists that a single text may stand for.
    """
    told = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    told |= {name: (row[name],) for name in texts if isinstance(row.get(name), str)}
    told |= {name: Condition(row[name]) for name in ("when", "which", "none") if name in row}
    if "evidence" in row:
        told["evidence"] = cite(owner, row["evidence"])
    told |= {name: Severity(row[name]) for name in ("severity", "some") if name in row}
    return told


def cite(owner: str, written: Iterable[str | Mapping[str, Any]]) -> tuple[str, ...]:
    """The ids of evidence as a row names it: an id of shared evidence, or the evidence itself, which belongs to this
    row alone and is called after its owner.
    """
    ids = []
    for number, each in enumerate(written, start=1):
        if isinstance(each, str):
            ids.append(each)
            continue
        row = dict(each)
        key = row.pop("id", f"{owner}#{number}")
        found = proof(key, row)
        if CITED.setdefault(key, found) != found:
            raise ValueError(f"{owner}: evidence of another row is named {key} already, with other content")
        ids.append(key)
    return tuple(ids)


def proof(key: str, row: Mapping[str, Any]) -> Evidence:
    """A row of evidence."""
    return Evidence(key, **{"confidence": CONFIDENCE[row["kind"]], **row, "seen": str(row["seen"])})
