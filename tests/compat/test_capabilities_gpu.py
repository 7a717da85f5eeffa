"""What GPUs can do on each way: bounds of versions, GPUs of every kind, amounts and settings."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from packaging.version import Version

from tests.compat.test_rules import DATA, facts_of, merged
from tests.rows import each_row
from winhost.compat.assess import assess
from winhost.compat.capabilities.nccl import transport
from winhost.compat.capability import offers
from winhost.compat.target import Target
from winhost.model.path import VARIANTS, WINDOWS_VARIANTS
from winhost.model.reason import CapabilityVerdict
from winhost.resources.host import HostFacts

GROUP = (
    "gpu-compute",
    "gpu-memory",
    "multi-gpu",
    "gpu-p2p",
    "nvlink",
    "pinned-memory",
    "uvm",
    "cuda-ipc",
    "nccl-transport",
    "tensor-parallel",
    "pipeline-parallel",
    "data-parallel",
    "video-codec",
)
TWO_L40S: Mapping[str, Any] = {"with": ["three-more"], "change": {"gpu3": None, "gpu4": None}}
ROCM = {"with": ["radeon"]}


def host(situation: Mapping[str, Any]) -> HostFacts:
    """The plain host with GPUs added and changed. with: additions of the rules' cases; change: states by nickname."""
    resources = DATA["host"]
    for addition in situation.get("with", ()):
        resources = merged(resources, DATA["with"][addition])
    changes = {name: state and {"state": state} for name, state in situation.get("change", {}).items()}
    return facts_of(merged(resources, {"PciDevice": changes}))


def target(variant: str, situation: Mapping[str, Any], **stated: str) -> Target:
    return Target(host(situation), variant, {name: Version(version) for name, version in stated.items()})


def offered(variant: str, situation: Mapping[str, Any], **stated: str) -> dict[str, CapabilityVerdict]:
    return {verdict.capability: verdict for verdict in offers(target(variant, situation, **stated))}


def told(capability: str, variant: str, situation: Mapping[str, Any], **stated: str) -> tuple[str, tuple[str, ...]]:
    found = offered(variant, situation, **stated)[capability]
    return found.verdict.value, found.because


def kept(*names: str) -> dict[str, list[str]]:
    return {"with": [*names]}


ONE: Mapping[str, Any] = {}
TWO_H100, TWO_4090, TWO_3090, TWO_PRO = map(kept, ("two-h100", "two-rtx-4090", "two-rtx-3090", "two-rtx-pro-6000"))


@each_row(
    ("capability", "variant", "situation", "verdict", "because"),
    [
        ("gpu-compute", "dda", ONE, "supported", ()),
        ("gpu-compute", "bare-metal", ONE, "supported", ()),
        ("gpu-compute", "bare-metal", ROCM, "unsupported", ("gpu-compute.no-cuda",)),
        ("gpu-memory", "dda", TWO_L40S, "supported", ()),
        ("gpu-memory", "wsl2/nat", TWO_L40S, "degraded", ("gpu-memory.several-behind-windows",)),
        ("multi-gpu", "dual-boot", TWO_L40S, "supported", ()),
        ("multi-gpu", "wsl2/nat", TWO_L40S, "degraded", ("multi-gpu.behind-windows",)),
        ("gpu-p2p", "bare-metal", TWO_H100, "supported", ()),
        ("gpu-p2p", "bare-metal", TWO_L40S, "unverified", ("gpu-p2p.gpu-untold",)),
        ("gpu-p2p", "bare-metal", TWO_3090, "unverified", ("gpu-p2p.bridge",)),
        ("gpu-p2p", "bare-metal", TWO_PRO, "unverified", ("gpu-p2p.hung",)),
        ("gpu-p2p", "dda", TWO_4090, "unsupported", ("gpu-p2p.refused",)),
        ("gpu-p2p", "dda", TWO_H100, "unverified", ("gpu-p2p.assigned",)),
        ("gpu-p2p", "gpu-p", TWO_H100, "unverified", ("gpu-p2p.partition",)),
        ("gpu-p2p", "gpu-p", TWO_L40S, "unsupported", ("gpu-p2p.partition",)),
        ("nvlink", "bare-metal", TWO_H100, "supported", ()),
        ("nvlink", "dda", TWO_H100, "unverified", ("nvlink.assigned",)),
        ("nvlink", "dda", TWO_L40S, "unsupported", ("nvlink.none",)),
        ("nvlink", "wsl2/bridged", TWO_H100, "unsupported", ("nvlink.behind-windows",)),
        ("pinned-memory", "dda", ONE, "supported", ()),
        ("pinned-memory", "gpu-p", ONE, "unverified", ("pinned-memory.unshown",)),
        ("uvm", "dda", ONE, "supported", ()),
        ("cuda-ipc", "dda", ONE, "supported", ()),
        ("cuda-ipc", "wsl2/mirrored", ONE, "degraded", ("cuda-ipc.legacy-only",)),
        ("nccl-transport", "dual-boot", TWO_H100, "supported", ()),
        ("nccl-transport", "dual-boot", TWO_4090, "degraded", ("nccl-transport.no-peers",)),
        ("tensor-parallel", "dual-boot", TWO_L40S, "supported", ()),
        ("tensor-parallel", "dual-boot", TWO_4090, "degraded", ("tensor-parallel.no-peers",)),
        ("tensor-parallel", "dda", TWO_H100, "degraded", ("tensor-parallel.assigned",)),
        ("tensor-parallel", "gpu-p", TWO_L40S, "unverified", ("tensor-parallel.unshown",)),
        ("pipeline-parallel", "dual-boot", TWO_4090, "supported", ()),
        ("pipeline-parallel", "wsl2/nat", TWO_4090, "unverified", ("pipeline-parallel.unshown",)),
        ("data-parallel", "bare-metal", TWO_L40S, "supported", ()),
        ("video-codec", "bare-metal", ONE, "supported", ()),
        ("video-codec", "bare-metal", TWO_H100, "degraded", ("video-codec.no-encoder",)),
        ("video-codec", "gpu-p", TWO_H100, "unverified", ("video-codec.unshown",)),
        ("video-codec", "wsl2/nat", ONE, "unverified", ("video-codec.unknown",)),
    ],
)
def test_gpus_of_every_kind_are_told_apart(
    capability: str, variant: str, situation: Mapping[str, Any], verdict: str, because: tuple[str, ...]
) -> None:
    assert told(capability, variant, situation) == (verdict, because)


@each_row(
    ("capability", "stated", "verdict", "because"),
    [
        ("pinned-memory", {"vllm": "0.23.0"}, "unsupported", ("pinned-memory.vllm-refuses",)),
        ("pinned-memory", {"vllm": "0.24.0"}, "degraded", ("pinned-memory.little", "pinned-memory.uva-needed")),
        ("pinned-memory", {"vllm": "0.29.1"}, "degraded", ("pinned-memory.little", "pinned-memory.uva-needed")),
        ("pinned-memory", {"vllm": "0.30.0"}, "degraded", ("pinned-memory.little", "pinned-memory.switched-off")),
        ("pinned-memory", {}, "unverified", ("pinned-memory.unknown",)),
        ("video-codec", {"toolkit": "1.18.2"}, "unverified", ("video-codec.toolkit-older",)),
        ("video-codec", {"toolkit": "1.19.0"}, "degraded", ("video-codec.toolkit-regression",)),
        ("video-codec", {"toolkit": "1.20.0"}, "supported", ()),
        ("gpu-compute", {"cuda": "12.9", "driver": "572.83"}, "supported", ()),
        ("gpu-compute", {"cuda": "13.0", "driver": "572.83"}, "unsupported", ("gpu-compute.driver-too-old",)),
        ("gpu-compute", {"driver": "572.83"}, "unverified", ("gpu-compute.unknown",)),
        ("cuda-ipc", {"driver": "496.49"}, "unsupported", ("cuda-ipc.old-driver",)),
    ],
)
def test_versions_decide_under_wsl(
    capability: str, stated: Mapping[str, str], verdict: str, because: tuple[str, ...]
) -> None:
    assert told(capability, "wsl2/bridged", ONE, **stated) == (verdict, because)


def test_a_gpu_that_cuda_13_left_is_not_judged_without_the_version_of_cuda() -> None:
    by_cuda = {
        cuda: offered("dual-boot", kept("tesla-p40"), **({"cuda": cuda} if cuda else {}))["gpu-compute"].verdict.value
        for cuda in ("", "12.9", "13.0")
    }
    assert by_cuda == {"": "unverified", "12.9": "unverified", "13.0": "unsupported"}


def test_a_gpu_that_cuda_13_left_beside_others_degrades() -> None:
    found = offered("dual-boot", kept("three-more", "tesla-p40"), cuda="13.0")["gpu-compute"]
    assert (found.verdict.value, found.because) == (
        "degraded",
        ("gpu-compute.left-by-cuda-13", "gpu-compute.not-in-vllm"),
    )


def test_graphics_of_another_maker_do_not_make_a_second_gpu() -> None:
    beside = {"with": ["three-more", "radeon"], "change": {"gpu3": None, "gpu4": None}}
    assert offered("dual-boot", beside)["tensor-parallel"].because == ("tensor-parallel.one-gpu",)


def test_only_nvidias_drivers_are_read_as_such() -> None:
    """Intel's and AMD's versions end in digits that look like one."""
    beside = {"with": ["three-more", "radeon"], "change": {"gpu": {"driver_version": "32.0.101.6078"}}}
    assert target("wsl2/nat", beside).driver == Version("582.70")


@each_row(
    ("capability", "variant", "situation", "measure"),
    [
        ("gpu-memory", "dda", ONE, "45 GiB"),
        ("gpu-memory", "dda", TWO_L40S, "45 GiB + 45 GiB = 90 GiB"),
        ("gpu-memory", "dual-boot", TWO_H100, "80 GiB + 80 GiB = 160 GiB"),
        ("gpu-memory", "wsl2/nat", ONE, "45 GiB; of these 40.5 GiB for engines (90 %)"),
        ("gpu-memory", "wsl2/nat", TWO_L40S, "45 GiB + 45 GiB = 90 GiB; of these 72 GiB for engines (80 %)"),
        ("gpu-memory", "gpu-p", kept("partitionable"), "at most 45 GiB for a VM"),
        ("gpu-memory", "gpu-p", ONE, None),
        ("gpu-memory", "dda", kept("unlisted"), "45 GiB"),
        ("gpu-memory", "dda", {"with": ["unlisted"], "change": {"gpu": {"vram": None}}}, None),
        ("multi-gpu", "dda", TWO_L40S, "2x NVIDIA L40S"),
        ("multi-gpu", "dda", ONE, None),
        ("pinned-memory", "dual-boot", ONE, "up to the 256 GiB of the machine, minus what else runs"),
        ("nccl-transport", "dual-boot", TWO_H100, "P2P, directly between GPUs; 8 GiB of /dev/shm"),
        ("nccl-transport", "dual-boot", ONE, None),
        ("nccl-transport", "gpu-p", TWO_L40S, None),
    ],
)
def test_how_much_there_is(capability: str, variant: str, situation: Mapping[str, Any], measure: str | None) -> None:
    assert offered(variant, situation)[capability].measure == measure


def test_a_partition_count_of_nothing_divides_nothing() -> None:
    facts = host(kept("partitionable")).document
    gpus = facts.resources["PartitionableGpu"]
    assert isinstance(gpus, tuple)
    zero = tuple(replace(gpu, state={**gpu.state, "valid_counts": [0, 2]}) for gpu in gpus)
    odd = HostFacts(replace(facts, resources={**facts.resources, "PartitionableGpu": zero}))
    found = {each.capability: each.measure for each in offers(Target(odd, "gpu-p"))}
    assert found["gpu-memory"] == "at most 22.5 GiB for a VM"


@each_row("variant", [variant for variant in WINDOWS_VARIANTS if variant.startswith(("wsl2", "wslc"))])
def test_behind_windows_nccl_is_set_to_host_memory_and_told_which_vllm_setting_pins(variant: str) -> None:
    found = transport(target(variant, TWO_H100))
    assert found is not None
    settings = {"NCCL_P2P_DISABLE": "1", "NCCL_CUMEM_ENABLE": "0", "NCCL_CUMEM_HOST_ENABLE": "0"}
    assert settings.items() <= found.settings.items()
    assert "NCCL_SHM_DISABLE" not in found.settings
    assert "--disable-custom-all-reduce" in found.engine
    measure = offered(variant, TWO_H100)["pinned-memory"].measure
    assert measure is not None
    assert "VLLM_WSL2_ENABLE_PIN_MEMORY=1" in measure


@each_row(
    ("variant", "situation", "peers_off"),
    [
        ("dda", TWO_H100, True),
        ("bare-metal", TWO_4090, True),
        ("bare-metal", TWO_PRO, True),
        ("bare-metal", TWO_3090, False),
        ("bare-metal", TWO_L40S, False),
        ("bare-metal", TWO_H100, False),
    ],
)
def test_peers_are_switched_off_where_there_are_none_or_nobody_has_shown_any(
    variant: str, situation: Mapping[str, Any], *, peers_off: bool
) -> None:
    found = transport(target(variant, situation))
    assert found is not None
    assert ("NCCL_P2P_DISABLE" in found.settings) is peers_off


def test_the_network_of_wsl_changes_nothing_about_gpus() -> None:
    facts = host(TWO_L40S)
    path = assess(facts).path("wsl2")
    told = {
        tuple((v.capability, v.verdict, v.because, v.measure) for v in variant.capabilities if v.capability in GROUP)
        for variant in path.every_variant
    }
    assert len(path.every_variant) == len(VARIANTS["wsl2"])
    assert len(told) == 1


@each_row("variant", WINDOWS_VARIANTS)
def test_what_takes_two_gpus_is_never_offered_with_one(variant: str) -> None:
    found = offered(variant, ONE, vllm="0.33.0", toolkit="1.20.0", cuda="13.0", driver="591.59")
    two = ("multi-gpu", "gpu-p2p", "nvlink", "tensor-parallel", "pipeline-parallel", "data-parallel")
    assert {name: found[name].verdict.value for name in two} == dict.fromkeys(two, "unsupported")


@each_row("variant", WINDOWS_VARIANTS)
@each_row("fact", ["name", "vram", "driver_model", "driver_version"])
def test_not_knowing_a_fact_of_a_gpu_makes_nothing_supported(variant: str, fact: str) -> None:
    unread = {"unknown": {"category": "PermissionDenied"}}
    for situation in (ONE, TWO_L40S, TWO_4090, ROCM):
        blind = {**situation, "change": {**situation.get("change", {}), "gpu": {fact: unread}}}
        before, after = offered(variant, situation), offered(variant, blind)
        worse = [n for n in GROUP if after[n].verdict.value == "supported" != before[n].verdict.value]
        assert worse == []
