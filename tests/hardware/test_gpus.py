"""The catalogue of GPUs: what its rows may say, and what is read from them."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from tests.cases import FASTEST
from tests.rows import each_row
from winhost.hardware import gpus
from winhost.hardware.gpus import GpuModel, NvLink, OpenModules, P2p, find_model, find_model_by_name
from winhost.model.reason import Kind
from winhost.model.units import GiB, MiB

TEXT = (Path(gpus.__file__).parent / "gpus.yaml").read_text(encoding="utf-8")
BOOK: Mapping[str, Any] = yaml.load(TEXT, FASTEST)
GPUS: Mapping[str, Mapping[str, Any]] = BOOK["gpus"]
FORMS = [(ids, None) for ids in GPUS] + [(ids, form) for ids, gpu in GPUS.items() for form in gpu.get("variants", ())]
FACTS = {field.name for field in fields(GpuModel)} - {"device", "line", "sources"} - {"memory"} | {"memory_mib"}

# NVIDIA, MIG User Guide: the chips of the products that it lists.
MIG_CHIPS = {"GA100", "GH100", "GB100", "GB110", "GB202", "GB203"}
OPEN_MODULES = {
    "Kepler": {OpenModules.IMPOSSIBLE},
    "Maxwell": {OpenModules.IMPOSSIBLE},
    "Pascal": {OpenModules.IMPOSSIBLE},
    "Volta": {OpenModules.IMPOSSIBLE},
    "Turing": {OpenModules.POSSIBLE},
    "Ampere": {OpenModules.POSSIBLE},
    "Ada Lovelace": {OpenModules.POSSIBLE},
    "Hopper": {OpenModules.POSSIBLE, OpenModules.NEEDED},  # needed with a Grace CPU
    "Blackwell": {OpenModules.NEEDED},
}
WITHOUT_NVENC = {"GA100", "GH100", "GB100"}
NVENC_UNTOLD = {"GB110", "GK110", "GK210", "GM200", "GM204"}
SMALL_BARS = {"GP104", "GK110", "TU104"}  # before Ampere no BAR grows, and these stay at 256 MiB


def the(ids: str, form: str | None = None) -> GpuModel:
    found = find_model(f"VEN_{ids[:4].upper()}&DEV_{ids[5:].upper()}&SUBSYS_{(form or '0000').upper()}10DE")
    assert found is not None
    return found


every_form = each_row(("ids", "form"), FORMS)
every_nvidia_form = each_row(("ids", "form"), [each for each in FORMS if each[0].startswith("10de")])

# --- The file --------------------------------------------------------------------------------------------------------


def test_no_id_and_no_name_stands_there_twice_in_one_section() -> None:
    """YAML takes the last of two equal keys without a word."""
    assert [
        ids for ids, times in Counter(re.findall(r'^  ("\w{4}:\w{4}"):', TEXT, re.MULTILINE)).items() if times > 1
    ] == []
    for section in ("said_by", "sources", "architectures", "chips", "lines"):
        lines = TEXT.split(f"\n{section}:\n")[1].split("\n\n")[0]
        names = re.findall(r"^  ([A-Za-z][^:]*):", lines, re.MULTILINE)
        assert sorted(names) == sorted(BOOK[section])


@each_row("ids", GPUS)
def test_a_row_has_ids_of_a_vendor_we_know_and_only_known_facts(ids: str) -> None:
    assert re.fullmatch(f"({'|'.join(gpus.VENDORS)}):[0-9a-f]{{4}}", ids)
    gpu = GPUS[ids]
    assert gpu.keys() <= FACTS | {"line", "said_by", "variants"}
    assert gpu["name"].startswith(gpus.VENDORS[ids[:4]])
    assert all(re.fullmatch(r"[0-9a-f]{4}", form) for form in gpu.get("variants", ()))
    assert all(row.keys() <= FACTS | {"said_by"} for row in gpu.get("variants", {}).values())


@pytest.mark.parametrize("section", ["architectures", "chips", "lines"])
def test_what_gpus_share_is_facts_and_belongs_to_a_gpu(section: str) -> None:
    used = {
        "architectures": {chip["architecture"] for chip in BOOK["chips"].values()},
        "chips": {gpu.get("chip") for gpu in GPUS.values()},
        "lines": {gpu.get("line") for gpu in GPUS.values()},
    }[section]
    assert BOOK[section].keys() == used - {None}
    assert all(row.keys() <= FACTS | {"said_by"} for row in BOOK[section].values())


def test_every_source_is_used_and_of_a_kind_we_know() -> None:
    shared = [row for section in ("architectures", "chips", "lines") for row in BOOK[section].values()]
    forms = [row for gpu in GPUS.values() for row in gpu.get("variants", {}).values()]
    named = {source for row in (*shared, *GPUS.values(), *forms) for source in row.get("said_by", {}).values()}
    assert named | set(BOOK["said_by"].values()) == BOOK["sources"].keys()
    assert all(set(source) == {"kind", "text"} and source["text"] for source in BOOK["sources"].values())
    bars = [gpu["bars"] for gpu in GPUS.values() if "bars" in gpu]
    assert {row["kind"] for row in (*BOOK["sources"].values(), *bars)} <= set(get_args(Kind))


# --- What the GPUs are ----------------------------------------------------------------------------------------------


@every_form
def test_every_fact_of_a_gpu_has_a_source(ids: str, form: str | None) -> None:
    gpu = the(ids, form)
    facts = {name for name, value in vars(gpu).items() if value is not None} - {"device", "sources"}
    assert gpu.sources.keys() | {"bars"} == facts | {"bars"}
    assert gpu.bars is None or gpu.bars.source.text


@every_form
def test_a_size_in_a_name_is_the_memory(ids: str, form: str | None) -> None:
    gpu = the(ids, form)
    size = None if "GH200" in gpu.name else re.search(r"\b(\d+)GB\b", gpu.name)  # it counts the memory of Grace
    assert size is None or gpu.memory == int(size[1]) * GiB


def test_laptop_gpus_of_one_name_and_several_sizes_are_told_apart() -> None:
    sizes = {ids: the(ids).memory for ids in ("10de:25ab", "10de:25ac", "10de:25e5", "10de:25ec")}
    assert list(sizes.values()) == [4 * GiB, 6 * GiB, 4 * GiB, 6 * GiB]


@every_form
def test_the_frame_buffer_fits_the_memory(ids: str, form: str | None) -> None:
    gpu = the(ids, form)
    assert gpu.memory is None or GiB <= gpu.memory <= 512 * GiB
    assert gpu.memory is None or gpu.memory % MiB == 0
    if gpu.memory and gpu.bars:
        least = 256 * MiB if gpu.chip in SMALL_BARS else gpu.memory
        most = 1 << (gpu.memory - 1).bit_length()  # the rule by which BARs without a listing are derived
        assert least <= max(gpu.bars.wide) <= most


@every_nvidia_form
def test_a_chip_decides_architecture_and_what_follows_from_it(ids: str, form: str | None) -> None:
    gpu = the(ids, form)
    assert gpu.cuda
    assert gpu.architecture is not None
    assert gpu.compute_capability is not None
    assert gpu.open_modules in OPEN_MODULES[gpu.architecture]
    assert (gpu.fp8, gpu.nvfp4) == (gpu.compute_capability >= (8, 9), gpu.compute_capability >= (10, 0))
    assert gpu.nvenc is (None if gpu.chip in NVENC_UNTOLD else gpu.chip not in WITHOUT_NVENC)
    assert gpu.nvdec is not False


@every_nvidia_form
def test_instances_are_only_on_chips_that_have_them(ids: str, form: str | None) -> None:
    gpu = the(ids, form)
    assert gpu.mig in ((None, 0, 2, 4, 7) if gpu.chip in MIG_CHIPS else (0,))
    assert not (gpu.mig and "GeForce" in gpu.name)


@every_nvidia_form
def test_the_class_is_that_of_the_line(ids: str, form: str | None) -> None:
    gpu = the(ids, form)
    if "Laptop" in gpu.name:
        assert gpu.pci_class is None
    elif gpu.default_driver_model == "TCC":
        assert gpu.pci_class == 0x0302
    elif "GeForce" in gpu.name or "Workstation" in gpu.name:
        assert gpu.pci_class == 0x0300
    else:
        assert gpu.pci_class in (0x0300, 0x0302, None)


@every_nvidia_form
def test_driver_models_hold_the_one_by_default_and_geforce_takes_wddm_alone(ids: str, form: str | None) -> None:
    gpu = the(ids, form)
    assert set(gpu.driver_models or ()) <= {"WDDM", "TCC", "MCDM"}
    assert gpu.driver_models is None or gpu.default_driver_model in gpu.driver_models
    assert "GeForce" not in gpu.name or gpu.driver_models == ("WDDM",)


@every_nvidia_form
def test_peers_over_nvlink_have_nvlink_and_geforce_has_none_over_pcie(ids: str, form: str | None) -> None:
    gpu = the(ids, form)
    assert gpu.p2p is not P2p.NVLINK or gpu.nvlink is NvLink.BRIDGE
    assert gpu.p2p is not P2p.ANY or "GeForce" not in gpu.name
    assert gpu.nvlink_links is None or gpu.nvlink in (NvLink.BOARD, NvLink.BRIDGE)
    assert "SXM" not in gpu.name or gpu.nvlink in (NvLink.BOARD, None)


@every_nvidia_form
def test_geforce_and_workstation_gpus_are_on_no_list_for_partitions(ids: str, form: str | None) -> None:
    gpu = the(ids, form)
    assert gpu.partition_lists is not None
    assert set(gpu.partition_lists) <= {"server-2025", "azure-local"}
    assert not (gpu.partition_lists and gpu.pci_class != 0x0302)


def test_microsofts_list_for_server_2025_is_whole() -> None:
    listed = {the(ids, form).name for ids, form in FORMS if "server-2025" in (the(ids, form).partition_lists or ())}
    gpus = {"A2", "A10", "A16", "A40", "L2", "L4", "L40", "L40S"}
    assert listed - {"NVIDIA A2 or A16"} == {f"NVIDIA {name}" for name in gpus}


# --- The reader ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "device", ["", "10de:ffff", "VEN_10DE&DEV_FFFF", "VEN_1A03&DEV_2000", "NVIDIA L40S", "10de", "26b9"]
)
def test_a_gpu_that_is_not_there_is_not_known(device: str) -> None:
    assert find_model(device) is None


@pytest.mark.parametrize("device", ["VEN_10DE&DEV_26B9&SUBSYS_185110DE", "ven_10de&dev_26b9", "10de:26b9", "10DE:26B9"])
def test_a_gpu_is_found_by_every_way_to_write_its_ids(device: str) -> None:
    found = find_model(device)
    assert found is not None
    assert (found.name, found.memory, found.vendor) == ("NVIDIA L40S", 48 * GiB, "NVIDIA")


def test_a_subsystem_tells_gpus_of_one_id_apart() -> None:
    assert [the("10de:25b6", form).name for form in (None, "157e", "14a9")] == [
        "NVIDIA A2 or A16",
        "NVIDIA A2",
        "NVIDIA A16",
    ]
    assert [the("10de:2bb3", form).memory for form in ("204d", "227a")] == [48 * GiB, 72 * GiB]


def test_the_nearest_row_wins_and_null_takes_a_fact_back() -> None:
    assert the("10de:2330").open_modules is OpenModules.POSSIBLE
    assert the("10de:2342").open_modules is OpenModules.NEEDED  # GH200, by its own row
    assert the("10de:2bb3").mig == 2
    assert the("10de:2bb3", "227a").mig is None


def test_a_better_source_for_a_shared_fact_is_the_gpus_own() -> None:
    assert the("10de:2335").sources["p2p"].kind == "measured"
    assert the("10de:26b9").sources["p2p"].kind == "inferred"


@pytest.mark.parametrize(("device", "vendor"), [("1002:74a1", "AMD"), ("8086:e20b", "Intel")])
def test_other_makers_gpus_are_named_and_run_no_cuda(device: str, vendor: str) -> None:
    found = the(device)
    assert (found.vendor, found.cuda, found.compute_capability) == (vendor, False, None)


def test_a_gpu_can_be_known_without_its_bars() -> None:
    assert the("10de:1f07").bars is None
    assert the("10de:26b9").bars is not None


NAMES = {
    "NVIDIA GeForce RTX 3090": "GA102",
    "GeForce RTX 2080 Ti": "TU102",
    "Tesla V100-PCIE-16GB": "GV100",
    "NVIDIA A100-SXM4-80GB": "GA100",
    "NVIDIA A100 80GB PCIe": "GA100",
    "Tesla P100-PCIE-16GB": "GP100",
    "NVIDIA Corporation GA102 [GeForce RTX 3090]": "GA102",
    "NVIDIA GeForce RTX 4090 Laptop GPU": "AD103",
    "Quadro RTX 5000": "TU104",
    "NVIDIA L40S": "AD102",
    "NVIDIA GeForce RTX 3060 ...": None,
    "NVIDIA RTXA6000-48A": None,
    "NVIDIA GPU": None,
    "": None,
}


@each_row(("name", "chip"), NAMES.items(), ids=NAMES)
def test_a_gpu_is_known_by_the_name_that_tools_give_it(name: str, chip: str | None) -> None:
    found = find_model_by_name(name)
    assert (found.chip if found else None) == chip
    assert found is None or (found.device, found.memory, found.bars) == ("", None, None)


def test_gpus_of_one_name_share_what_is_known_of_them_by_it() -> None:
    assert {find_model("10de:2788").chip, find_model("10de:2803").chip} == {"AD104", "AD106"}  # type: ignore[union-attr]
    by_name = find_model_by_name("NVIDIA GeForce RTX 4060 Ti")
    assert by_name is not None
    assert by_name.compute_capability == (8, 9)
