"""The catalogue of GPUs by PCI vendor and device id: facts about a GPU model that need not be read from a host."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import cached_property
from importlib.resources import files
from typing import Any

from winhost.core.dataclass import dataclass
from winhost.model.catalogue_file import load_catalogue
from winhost.model.once import once
from winhost.model.reason import Kind
from winhost.model.units import Bytes, MiB

VENDORS = {"10de": "NVIDIA", "1002": "AMD", "8086": "Intel"}
IDS = re.compile(r"(?:VEN_)?([0-9A-F]{4})(?::|&DEV_)([0-9A-F]{4})(?:&SUBSYS_([0-9A-F]{4}))?", re.IGNORECASE)

_P2P_HANGS = "NVIDIA RTX PRO 6000"  # the driver offers peer access, but transfers were reported to hang
Row = Mapping[str, Any]


class P2p(StrEnum):
    """The links over which NVIDIA's Linux driver allows peer access between two GPUs of this model."""

    ANY = "any"
    NVLINK = "nvlink"
    NONE = "none"


class NvLink(StrEnum):
    """The origin of a GPU's NVLink: its board, a bridge sold separately, or none."""

    BOARD = "board"
    BRIDGE = "bridge"
    NONE = "none"


class OpenModules(StrEnum):
    """A GPU's support of NVIDIA's open kernel modules on Linux: required, optional or none."""

    NEEDED = "needed"
    POSSIBLE = "possible"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True)
class FactSource:
    """The source by which a fact can be checked."""

    kind: Kind
    text: str


@dataclass(frozen=True)
class Bars:
    """Sizes of the memory BARs in bytes: 64-bit (wide) and 32-bit (narrow), with resizable BAR at its largest size."""

    wide: tuple[Bytes, ...]
    narrow: tuple[Bytes, ...]
    source: FactSource


@dataclass(frozen=True)
class GpuModel:
    """A GPU model of the catalogue. None means unknown.

    device: as in `10de:26b9`, empty if only the name is known; memory: of one GPU, as sold; pci_class: 0x0300 display,
    0x0302 compute; mig: the maximum number of instances; partition_lists: the vendors' lists that name it for GPU-P;
    line: the product line, a name in the catalogue; sources: by fact, except for BARs, which have their own.
    """

    device: str
    name: str
    sources: Mapping[str, FactSource]
    chip: str | None = None
    architecture: str | None = None
    compute_capability: tuple[int, int] | None = None
    memory: Bytes | None = None
    bars: Bars | None = None
    pci_class: int | None = None
    driver_models: tuple[str, ...] | None = None
    default_driver_model: str | None = None
    p2p: P2p | None = None
    nvlink: NvLink | None = None
    nvlink_links: int | None = None
    partition_lists: tuple[str, ...] | None = None
    open_modules: OpenModules | None = None
    mig: int | None = None
    nvenc: bool | None = None
    nvdec: bool | None = None
    fp8: bool | None = None
    nvfp4: bool | None = None
    line: str | None = None

    @property
    def consumer(self) -> bool:
        """True if it is sold for desktop computers or notebooks."""
        return bool(self.line and self.line.startswith(CONSUMER_LINES))

    @cached_property
    def peers(self) -> tuple[str, ...]:
        """The peer-to-peer properties that apply, by the words that rule rows use.

        refused: NVIDIA's driver refuses peer access; hung: the driver offers it, but it was reported to hang; bridge:
        it needs an NVLink bridge, which Windows does not report; board: the board has NVLink; untold: whether it works
        is unknown.
        """
        properties = {
            "refused": self.p2p is P2p.NONE,
            "hung": self.name.startswith(_P2P_HANGS),
            "bridge": self.p2p is P2p.NVLINK,
            "board": self.nvlink is NvLink.BOARD,
            "untold": self.p2p is None or (self.p2p is P2p.ANY and self.sources["p2p"].kind == "inferred"),
        }
        return tuple(word for word, applies in properties.items() if applies)

    @property
    def vendor(self) -> str:
        """The maker of the chip."""
        return VENDORS.get(self.device[:4]) or self.name.partition(" ")[0]

    @property
    def cuda(self) -> bool:
        """True if it runs CUDA, which serving needs."""
        return self.vendor == "NVIDIA"


@once
def find_model(device: str) -> GpuModel | None:
    """Return a GPU model by its ids, `VEN_10DE&DEV_26B9&SUBSYS_…` or `10de:26b9`; None if the catalogue lacks it."""
    ids = IDS.match(device)
    if ids is None:
        return None
    vendor, model, subsystem = (part.lower() if part else None for part in ids.groups())
    return _build_model(f"{vendor}:{model}", subsystem)


@once
def find_model_by_name(name: str) -> GpuModel | None:
    """Return a GPU model by the name that tools print, without ids, memory and BARs, which differ among such GPUs.

    None if the catalogue has no such name, if the name was truncated, or if GPUs of different kinds share it.
    """
    models = _models_by_name().get(_name_tokens(name), ())
    kinds = {(model.architecture, model.compute_capability, model.line, model.nvlink) for model in models}
    return replace(models[0], device="", memory=None, bars=None) if len(kinds) == 1 else None


@once
def _models_by_name() -> Mapping[frozenset[str], Sequence[GpuModel]]:
    models: dict[frozenset[str], list[GpuModel]] = {}
    for model in all_models():
        models.setdefault(_name_tokens(model.name), []).append(model)
    return models


def _name_tokens(name: str) -> frozenset[str]:
    """Return the tokens of a GPU's name without those that tools spell differently.

    `Tesla V100-PCIE-16GB` of nvidia-smi and `GV100 [Tesla V100 PCIe 16GB]` of lspci have the same tokens.
    """
    inside = name[name.rfind("[") + 1 :].rstrip("]").casefold()
    return frozenset(re.split(r"[\s-]+", inside)) - {"nvidia", "corporation", "tesla", "gpu", ""}


def all_models() -> Iterator[GpuModel]:
    """Yield every GPU model, in the order of the catalogue."""
    yield from filter(None, (_build_model(device, None) for device in _catalogue()["gpus"]))


def _build_model(device: str, subsystem: str | None) -> GpuModel | None:
    book = _catalogue()
    gpu = book["gpus"].get(device)
    if gpu is None:
        return None
    facts: dict[str, Any] = {}
    said_by: dict[str, str] = {}
    for layer in _layers(gpu, subsystem):
        facts |= {name: value for name, value in layer.items() if name not in _NON_FACTS}
        said_by |= {name: book["said_by"][name] for name in layer if name in book["said_by"]} | layer.get("said_by", {})
    facts = {
        name: _PARSERS[name](value) if name in _PARSERS else value for name, value in facts.items() if value is not None
    }
    sources = {name: FactSource(**book["sources"][said_by[name]]) for name in facts if name in said_by}
    return GpuModel(device=device, sources=_field_names(sources), **_field_names(facts))


def _layers(gpu: Row, subsystem: str | None) -> Iterator[Row]:
    """Yield the rows that describe a GPU, from the most general to its own."""
    book = _catalogue()
    chip: Row = book["chips"][gpu["chip"]] if "chip" in gpu else {}
    if "architecture" in chip:
        yield book["architectures"][chip["architecture"]]
    yield chip
    yield book["lines"][gpu["line"]] if "line" in gpu else {}
    yield gpu
    yield gpu.get("variants", {}).get(subsystem, {})


def _bars(row: Row) -> Bars:
    wide, narrow = (tuple(n * MiB for n in row[name]) for name in ("bars64_mib", "bars32_mib"))
    return Bars(wide, narrow, FactSource(row["kind"], row["source"]))


def _field_names(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {"memory" if name == "memory_mib" else name: value for name, value in facts.items()}


_NON_FACTS = ("said_by", "variants")
CONSUMER_LINES = ("geforce", "titan", "workstation-laptop")
_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "bars": _bars,
    "compute_capability": tuple,
    "driver_models": tuple,
    "memory_mib": lambda mib: mib * MiB,
    "nvlink": NvLink,
    "open_modules": OpenModules,
    "p2p": P2p,
    "partition_lists": tuple,
}


@once
def _catalogue() -> Row:
    book: Row = load_catalogue(files(__package__).joinpath("gpus.yaml"))
    return book
