"""The catalogue of models that winhost offers: the shipped one, or the one that `winhost models refresh` wrote.

`models.yaml` has each number with its source. A refreshed copy in the user's data folder replaces it.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from winhost.core.dataclass import dataclass
from winhost.model.catalogue_file import load_catalogue
from winhost.model.errors import UsageError, visible
from winhost.model.once import once
from winhost.model.secrets import SecretRef
from winhost.model.units import Bytes
from winhost.model.workload import DType, Model, Quantization, Shape

SCHEMA = "winhost.models/1"
MAX_SUGGESTIONS = 3
# The number of weights that share a scale. AWQ and GPTQ are mostly published with groups of 128; config.json of
# Qwen/Qwen3-32B-FP8 has weight_block_size [128, 128]. vLLM does not split a group between GPUs; it pads MXFP4.
GROUPS: Mapping[Quantization | None, int] = dict.fromkeys(
    (Quantization.AWQ, Quantization.GPTQ, Quantization.INT4, Quantization.INT8, Quantization.FP8), 128
)


@dataclass(frozen=True)
class Entry:
    """A repository of the catalogue.

    name: under which it is served; released: a date, as YYYY-MM-DD; parameters: of the model before it was quantized;
    weights: bytes, if a source states them; download: bytes of all files, known after a refresh; shape: counts only
    layers with a KV cache; intermediate: width between the two halves of an MLP, of one expert; longest: the context in
    tokens that the model was made for; experts: their number in a mixture; takes: inputs other than text; gated: the
    licence has to be accepted on the hub, and a token is needed; revision: the commit at the last refresh; sources: by
    the name of the value.
    """

    id: str
    name: str
    released: str
    parameters: int
    dtype: DType
    quantization: Quantization | None
    weights: Bytes | None
    download: Bytes | None
    shape: Shape
    heads: int
    intermediate: int
    longest: int
    experts: int | None
    takes: tuple[str, ...]
    gated: bool
    revision: str | None
    sources: Mapping[str, str]

    @property
    def stored(self) -> str:
        """The format of its weights, for display."""
        return str(self.quantization or self.dtype)

    @property
    def model(self) -> Model:
        """The model on one GPU, without a context."""
        return Model(
            name=self.name,
            id=self.id,
            revision=self.revision,
            parameters=self.parameters,
            dtype=self.dtype,
            quantization=self.quantization,
            weights=self.weights,
            shape=self.shape,
            dense=not (self.experts or self.takes or self.quantization),
        )

    def splits_over(self, tensor: int) -> bool:
        """Tell whether vLLM can split each layer over so many GPUs: into whole heads, and whole groups of quantized
        weights.
        """
        heads, kv_heads = self.heads, self.shape.kv_heads or 1
        whole_heads = heads % tensor == 0 and (kv_heads % tensor == 0 or tensor % kv_heads == 0)
        return whole_heads and self.intermediate % (tensor * GROUPS.get(self.quantization, 1)) == 0


@dataclass(frozen=True)
class Catalogue:
    """read: the day on which its sources were read, or the hub was asked; file: of a refreshed catalogue."""

    read: str
    entries: tuple[Entry, ...]
    file: Path | None = None


def data_folder() -> Path:
    """Return the user's data folder; WINHOST_DATA overrides it."""
    from platformdirs import user_data_path

    override = os.environ.get("WINHOST_DATA")
    return Path(override) if override else user_data_path("winhost", appauthor=False)


def refreshed_file() -> Path:
    """Return the path of the file that `winhost models refresh` writes."""
    return data_folder() / "models.yaml"


@once
def shipped_document() -> Mapping[str, Any]:
    read: Mapping[str, Any] = load_catalogue(files(__package__).joinpath("models.yaml"))
    return read


def catalogue() -> Catalogue:
    """Read the refreshed catalogue, else the shipped one. Raises UsageError (CatalogueUnusable) for a refreshed one."""
    file = refreshed_file()
    if not file.is_file():
        return catalogue_of(shipped_document())
    from yaml import YAMLError  # only for a refreshed catalogue

    try:
        document = load_catalogue(file)
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise ValueError(f"it is no {SCHEMA}")
        return replace(catalogue_of(document), file=file)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, YAMLError) as error:
        what = f"{visible(str(file))} cannot be used as a catalogue of models: {visible(str(error)[:200])}"
        hint = "Delete it to have the one that comes with winhost, then: winhost models refresh"
        raise UsageError("CatalogueUnusable", what=what, hint=hint) from error


def catalogue_of(document: Mapping[str, Any]) -> Catalogue:
    entries = tuple(
        _entry(name, model, id_, repository)
        for name, model in document["models"].items()
        for id_, repository in model["repositories"].items()
    )
    return Catalogue(str(document["read"]), entries)


def _entry(name: str, model: Mapping[str, Any], id_: str, repository: Mapping[str, Any]) -> Entry:
    """Make an entry. Values of the repository override those that all repositories of the model share."""
    values = {**model, **repository}
    shape = values["shape"]
    sizes = {name: shape[name] for name in ("layers", "kv_heads", "head_dim", "hidden", "vocabulary", "heads")}
    return Entry(
        id=id_,
        name=name,
        released=str(values["released"]),
        parameters=int(values["parameters"]),
        dtype=DType(values.get("dtype", "bfloat16")),
        quantization=Quantization(values["quantization"]) if values.get("quantization") else None,
        weights=values.get("weights"),
        download=values.get("download"),
        shape=Shape(**sizes, tied_embeddings=bool(shape.get("tied_embeddings"))),
        heads=int(shape["heads"]),
        intermediate=int(shape["intermediate"]),
        longest=int(values["longest"]),
        experts=values.get("experts"),
        takes=tuple(values.get("takes", ())),
        gated=bool(values.get("gated")),
        revision=values.get("revision"),
        sources={**model["from"], **repository["from"]},
    )


def similar_names(wrong: str, entries: Iterable[Entry]) -> tuple[str, ...]:
    """Suggest repositories of the catalogue for a wrong name."""
    from difflib import SequenceMatcher  # only for a wrong name

    requested = wrong.lower()
    known = sorted({entry.id for entry in entries if entry.id != wrong})

    def similarity(id_: str) -> float:
        full_name = SequenceMatcher(None, requested, id_.lower()).ratio()
        last_part = SequenceMatcher(None, requested.rpartition("/")[2], id_.lower().rpartition("/")[2]).ratio()
        return max(full_name, last_part)

    ranked = sorted(((similarity(id_), id_) for id_ in known), key=lambda pair: (-pair[0], pair[1]))
    return tuple(id_ for score, id_ in ranked[:MAX_SUGGESTIONS] if score >= 0.75)


def named(name: str, entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Find models by their repository (ORG/NAME), its last part, or the name under which they are served."""
    requested = name.lower()
    return tuple(
        entry for entry in entries if requested in (entry.id.lower(), entry.id.rpartition("/")[2].lower(), entry.name)
    )


def workload_document(model: Model, revision: str | None = None, token: SecretRef | None = None) -> dict[str, Any]:
    """Return the content of a workload file that serves only this model."""
    options: dict[str, Any] = {"id": model.id}
    if revision := revision or model.revision:
        options["revision"] = revision
    if token or model.token:
        options["token"] = (token or model.token).written  # type: ignore[union-attr]  # one of them is there
    options |= {"weights": model.weights} if model.weights else {"parameters": model.parameters}
    options["dtype"] = str(model.dtype)
    if model.quantization:
        options["quantization"] = str(model.quantization)
    if model.dense:
        options["dense"] = True
    options |= {"context": model.context, "sequences": model.sequences}
    options["shape"] = {name: value for name, value in asdict(model.shape).items() if value is not None}
    if model.parallel.tensor > 1:
        options["parallel"] = {"tensor": model.parallel.tensor}
    return {
        "schema": "winhost.workload/1",
        "models": {model.name: options},
        "needs": {"must": ["gpu-compute"]},
        "exposure": "loopback",
    }
