"""What serving can do on each way: bounds of versions, modes of WSL, amounts."""

from tests.compat.test_capabilities_gpu import ONE, ROCM, TWO_H100, TWO_L40S, offered, told
from tests.rows import each_row
from winhost.compat.capability import MEASURES
from winhost.knowledge import catalogue
from winhost.model.path import WINDOWS_VARIANTS

LATEST = {"vllm": "0.33.0", "driver": "610.10", "cuda": "13.0"}
ON_CUDA = catalogue.entry("gpu-compute.no-cuda").also
SERVING = (*ON_CUDA, "sleep-data-parallel", "criu", "kv-peer-copies")


@each_row(
    ("capability", "variant", "stated", "verdict", "because"),
    [
        ("sleep-l1", "dda", {}, "unverified", ("sleep-l1.unknown",)),
        ("sleep-l1", "dda", {"vllm": "0.16.0"}, "degraded", ("sleep-l1.request-kills",)),
        ("sleep-l1", "dda", {"vllm": "0.17.0"}, "supported", ()),
        ("sleep-l1", "bare-metal", {"vllm": "0.33.0"}, "supported", ()),
        ("sleep-l1", "gpu-p", {"vllm": "0.33.0"}, "unverified", ("sleep-l1.unshown",)),
        (
            "sleep-l1",
            "wsl2/bridged",
            {"vllm": "0.16.0"},
            "degraded",
            ("sleep-l1.request-kills", "sleep-l1.pageable", "sleep-l1.adapters-corrupted"),
        ),
        (
            "sleep-l1",
            "wsl2/nat",
            {"vllm": "0.23.0"},
            "degraded",
            ("sleep-l1.pageable", "sleep-l1.adapters-corrupted"),
        ),
        (
            "sleep-l1",
            "wsl2/nat",
            {"vllm": "0.24.0"},
            "degraded",
            ("sleep-l1.pageable-by-default", "sleep-l1.other-runner", "sleep-l1.adapters-corrupted"),
        ),
        ("sleep-l1", "wsl2/nat", {"vllm": "0.29.0"}, "unverified", ("sleep-l1.pins-to-start",)),
        ("sleep-l1", "wsl2/mirrored", {"vllm": "0.33.0"}, "unverified", ("sleep-l1.outdated",)),
        ("sleep-l2", "dual-boot", {"vllm": "0.33.0"}, "supported", ()),
        ("sleep-l2", "wsl2/bridged", {"vllm": "0.33.0"}, "unverified", ("sleep-l2.unshown",)),
        ("sleep-data-parallel", "bare-metal", {"vllm": "0.33.0"}, "unsupported", ("data-parallel.one-gpu",)),
        ("cuda-checkpoint", "dda", {}, "unverified", ("cuda-checkpoint.unknown",)),
        ("cuda-checkpoint", "dda", {"driver": "580.159"}, "supported", ()),
        ("cuda-checkpoint", "dda", {"driver": "550.54"}, "degraded", ("cuda-checkpoint.tool-only",)),
        ("cuda-checkpoint", "dual-boot", {"driver": "545.23"}, "unsupported", ("cuda-checkpoint.old-driver",)),
        ("cuda-checkpoint", "wsl2/bridged", {"driver": "610.88"}, "unsupported", ("cuda-checkpoint.behind-windows",)),
        ("criu", "wsl2/bridged", {}, "degraded", ("criu.dxg",)),
        ("criu", "wsl2/nat", {"kernel": "5.15.90"}, "degraded", ("criu.dxg",)),
        ("criu", "wsl2/nat", {"kernel": "6.6.87.2"}, "unverified", ("criu.kernel-unread",)),
        ("criu", "wsl2/mirrored", {}, "unsupported", ("criu.mirrored",)),
        ("criu", "wslc", {}, "unverified", ("criu.unshown",)),
        ("criu", "bare-metal", {"driver": "555.42"}, "supported", ()),
        ("criu", "bare-metal", {"driver": "550.54"}, "degraded", ("criu.no-cuda-plugin",)),
        ("vllm-snapshot", "dda", {"vllm": "0.30.0", "driver": "580"}, "unsupported", ("vllm-snapshot.old-vllm",)),
        (
            "vllm-snapshot",
            "dda",
            {"vllm": "0.31.0", "driver": "580"},
            "unverified",
            ("vllm-snapshot.plugin", "vllm-snapshot.old-vllm"),
        ),
        ("vllm-snapshot", "dda", {"vllm": "0.32.0", "driver": "580"}, "unverified", ("vllm-snapshot.plugin",)),
        ("vllm-snapshot", "wsl2/nat", {"vllm": "0.33.0"}, "unsupported", ("vllm-snapshot.behind-windows",)),
        ("vllm-snapshot", "dda", {"vllm": "0.33.0", "driver": "545"}, "unsupported", ("cuda-checkpoint.old-driver",)),
        ("sharded-state", "dda", {}, "supported", ()),
        ("tensorizer", "wsl2/bridged", {}, "unverified", ("tensorizer.inferred",)),
        ("streaming-loaders", "wsl2/bridged", {}, "unverified", ("streaming-loaders.no-direct-storage",)),
        ("kv-write-through", "dda", {"vllm": "0.21.0"}, "unsupported", ("kv-write-through.old-vllm",)),
        ("kv-write-through", "dda", {"vllm": "0.22.0"}, "supported", ()),
        ("kv-lmcache", "bare-metal", {"vllm": "0.19.1"}, "supported", ()),
        ("kv-lmcache", "bare-metal", {"vllm": "0.20.0"}, "unverified", ("kv-lmcache.pair",)),
        ("kv-nixl", "bare-metal", {}, "supported", ()),
        ("kv-nixl", "wsl2/bridged", {}, "unverified", ("kv-nixl.behind-windows",)),
        ("kv-nixl", "wsl2/nat", {}, "unverified", ("kv-nixl.behind-windows", "kv-nixl.nat")),
        ("compressed-checkpoints", "bare-metal", {"vllm": "0.24.0"}, "supported", ()),
        ("compressed-checkpoints", "dda", {"vllm": "0.33.0"}, "unverified", ("compressed-checkpoints.other-vllm",)),
        ("compressed-checkpoints", "dda", {"vllm": "0.23.0"}, "unverified", ("compressed-checkpoints.other-vllm",)),
        (
            "compressed-checkpoints",
            "wsl2/nat",
            {"vllm": "0.24.0"},
            "unverified",
            ("compressed-checkpoints.behind-windows",),
        ),
        ("async-checkpoints", "dual-boot", {}, "supported", ()),
        ("async-checkpoints", "wsl2/nat", {}, "unverified", ("async-checkpoints.little-pinned",)),
    ],
)
def test_one_gpu_serves(
    capability: str, variant: str, stated: dict[str, str], verdict: str, because: tuple[str, ...]
) -> None:
    assert told(capability, variant, ONE, **stated) == (verdict, because)


@each_row(
    ("capability", "variant", "stated", "verdict", "because"),
    [
        ("sleep-data-parallel", "bare-metal", {"vllm": "0.23.0"}, "unsupported", ("sleep-data-parallel.crashes",)),
        ("sleep-data-parallel", "bare-metal", {"vllm": "0.24.0"}, "supported", ()),
        ("sleep-data-parallel", "dda", {"vllm": "0.24.0"}, "unverified", ("sleep-data-parallel.unshown",)),
        ("cuda-checkpoint", "dda", {"driver": "590.10"}, "degraded", ("cuda-checkpoint.several-gpus",)),
        ("cuda-checkpoint", "dda", {"driver": "610.10"}, "unverified", ("cuda-checkpoint.several-gpus",)),
        ("kv-peer-copies", "bare-metal", {"vllm": "0.23.0"}, "supported", ()),
        ("kv-peer-copies", "bare-metal", {"vllm": "0.24.0"}, "unsupported", ("kv-peer-copies.connector-gone",)),
        ("kv-peer-copies", "dda", {"vllm": "0.23.0"}, "unverified", ("gpu-p2p.assigned",)),
        ("kv-peer-copies", "wsl2/nat", {"vllm": "0.23.0"}, "unsupported", ("gpu-p2p.behind-windows",)),
    ],
)
def test_two_gpus_serve(
    capability: str, variant: str, stated: dict[str, str], verdict: str, because: tuple[str, ...]
) -> None:
    assert told(capability, variant, TWO_H100, **stated) == (verdict, because)


@each_row("variant", WINDOWS_VARIANTS)
def test_nothing_serves_without_cuda(variant: str) -> None:
    found = offered(variant, ROCM, **LATEST)
    assert {name: "gpu-compute.no-cuda" in found[name].because for name in ON_CUDA} == dict.fromkeys(ON_CUDA, True)


@each_row(("vllm", "code"), [("0.16.0", "sleep-l1.request-kills"), ("0.33.0", "sleep-l1.request-hangs")])
@each_row("capability", ["sleep-l1", "sleep-l2", "sleep-data-parallel"])
@each_row("variant", WINDOWS_VARIANTS)
def test_what_a_request_does_to_a_sleeper_is_told_everywhere(
    variant: str, capability: str, vllm: str, code: str
) -> None:
    codes = {reason.code for reason in offered(variant, TWO_L40S, vllm=vllm)[capability].reasons}
    assert codes & {"sleep-l1.request-kills", "sleep-l1.request-hangs"} == {code}


@each_row(
    ("capability", "variant", "parts"),
    [
        ("sleep-l1", "dda", ("55.6 GB/s from pinned memory", "90 GiB in 1.7 s")),
        ("sleep-l1", "wsl2/nat", ("10.8 GB/s from pageable memory", "not in WSL", "90 GiB in 8.9 s")),
        ("sleep-l2", "bare-metal", ("2.4 GB/s from a disk", "10.5 GB/s from the page cache")),
        ("cuda-checkpoint", "dda", ("suspended at 2.6 GiB/s", "resumed at 7.6 GiB/s")),
        ("compressed-checkpoints", "dda", ("1.45 times smaller in BF16", "1.4 times as fast from storage of 1")),
        ("kv-write-through", "dual-boot", ("6.5 GB/s in blocks of 16 KiB",)),
        ("async-checkpoints", "bare-metal", ("55.5 GB/s into pinned", "20.2 GB/s into pageable")),
    ],
)
def test_amounts_come_from_measurements(capability: str, variant: str, parts: tuple[str, ...]) -> None:
    measure = offered(variant, TWO_L40S)[capability].measure or ""
    assert [part for part in parts if part not in measure] == []


def test_peers_over_links_of_their_own_are_measured_and_others_not() -> None:
    assert "396 GB/s" in (offered("bare-metal", TWO_H100)["kv-peer-copies"].measure or "")
    assert offered("bare-metal", TWO_L40S)["kv-peer-copies"].measure is None


def test_speed_behind_windows_is_measured_by_nobody() -> None:
    measured = {name for name in SERVING if name in MEASURES and offered("wsl2/bridged", TWO_H100)[name].measure}
    assert measured == {"sleep-l1", "compressed-checkpoints"}
