"""Refresh the catalogue of models: ask the hub for each repository, and make another catalogue file of the answers."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from winhost.core.dataclass import dataclass
from winhost.hub.catalogue import shipped_document
from winhost.hub.draft import config_of
from winhost.hub.model_config import ModelConfig
from winhost.hub.repositories import HubRepository, listing_error
from winhost.hub.weights import weight_files
from winhost.model.errors import WinhostError
from winhost.model.secrets import Secret
from winhost.model.units import Bytes

_PARALLEL_REQUESTS = 8
Row = dict[str, Any]


@dataclass(frozen=True)
class Refreshed:
    """A repository. revision: the commit of its branch main; weights, download: bytes of the files that an engine
    loads, and of all files; changed: names of changed values; kept: why the entry was not refreshed, or empty.
    """

    model: str
    revision: str | None
    weights: Bytes | None
    download: Bytes | None
    changed: tuple[str, ...] = ()
    kept: str = ""


def refresh_catalogue(
    hub: str, token: Secret | None, today: str, before: Mapping[str, Any] | None, report: Callable[[str], None]
) -> tuple[Row, tuple[Refreshed, ...]]:
    """Return the document of the new catalogue, and the outcome for each repository.

    before: the catalogue of an earlier refresh, which keeps the values of repositories that cannot be asked now.
    report: is called with each repository. Raises WinhostError (NotListed) if none of the first few can be asked.
    """
    shipped = shipped_document()
    earlier: dict[str, Row] = {}
    for model in (before or {}).get("models", {}).values():
        earlier |= model.get("repositories", {})
    asked = [
        (name, id_, {**row, **earlier.get(id_, {})}, {**model, "repositories": None})
        for name, model in shipped["models"].items()
        for id_, row in model["repositories"].items()
    ]
    models: dict[str, Row] = {name: {**model, "repositories": {}} for name, model in shipped["models"].items()}
    done: list[Refreshed] = []
    with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
        for some in (asked[begin : begin + _PARALLEL_REQUESTS] for begin in range(0, len(asked), _PARALLEL_REQUESTS)):
            answers = pool.map(
                lambda each: _refresh_row(HubRepository(each[1], "main", hub, token), each[2], today), some
            )
            for (name, id_, row, model), (new, outcome) in zip(some, answers, strict=True):
                report(id_)
                models[name]["repositories"][id_] = new or row
                was, now = {**model, **row}, {**model, **(new or row)}
                changed = (
                    ()
                    if outcome.kept
                    else tuple(each for each in _COMPARED if each in was and was[each] != now.get(each))
                )
                done.append(replace(outcome, changed=changed))
            if len(done) == len(some) and all(each.kept for each in done):
                raise listing_error(hub, f"none of {len(done)} models could be asked; the first: {done[0].kept}", _HINT)
    return {**shipped, "read": today, "models": models}, tuple(done)


_COMPARED = ("revision", "weights", "download", "gated", "shape", "longest", "dtype", "quantization")
_HINT = "Is the hub reachable from here, perhaps with HTTPS_PROXY? The catalogue stays as it was"


def _refresh_row(repository: HubRepository, row: Row, today: str) -> tuple[Row | None, Refreshed]:
    try:
        about = repository.about()
        now = replace(repository, revision=about["sha"])
        sizes = now.sizes()
        weights = sum(sizes[path] for path in weight_files(now, sizes)) or None
        config = config_of(now, sizes)
    except WinhostError as error:
        return None, Refreshed(
            repository.model, row.get("revision"), row.get("weights"), row.get("download"), (), error.what
        )
    found = {
        "revision": now.revision,
        "weights": weights,
        "download": sum(sizes.values()),
        "gated": bool(about.get("gated")),
        **_config_values(config),
    }
    new = {name: value for name, value in found.items() if value is not None}
    source = f"{repository.page} at {now.revision}, read {today}"
    sources = {**row["from"], **dict.fromkeys(("id", *new), source)}
    return {**row, **new, "from": sources}, Refreshed(repository.model, now.revision, weights, found["download"])


def _config_values(config: ModelConfig) -> Row:
    """Return the values in config.json. The shape is one value, and None unless it is complete."""
    shape = {
        "layers": config.layers,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden": config.hidden,
        "intermediate": config.intermediate,
        "vocabulary": config.vocabulary,
        "tied_embeddings": bool(config.tied),
    }
    complete = None not in shape.values() and not config.latent
    return {
        "shape": shape if complete else None,
        "longest": config.longest,
        "dtype": str(config.served_dtype) if config.dtype else None,
        "quantization": str(config.quantization) if config.quantization else None,
    }
