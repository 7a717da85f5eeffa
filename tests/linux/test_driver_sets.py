"""The sets of packages that are NVIDIA's driver for a kernel, and none for WSL."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.linux.agent_definitions import definitions

WSL = "6.6.87.2-microsoft-standard-WSL2"


@pytest.fixture
def agent(tmp_path: Path) -> dict[str, Any]:
    scripts = definitions()
    scripts["has_nvswitches"].__globals__["PCI"] = tmp_path
    return scripts


def on(agent: dict[str, Any], kernel: str, *packages: str) -> list[str]:
    agent["os"] = SimpleNamespace(**{**vars(os), "uname": lambda: SimpleNamespace(release=kernel)})
    agent["packages"] = lambda: dict.fromkeys(packages)
    found: list[str] = agent["driver_sets"]()
    return found


@pytest.mark.parametrize(
    ("kernel", "packages", "flavour"),
    [
        ("6.8.0-117-generic", ("linux-image-virtual",), "generic"),
        ("6.11.0-26-generic", ("linux-image-generic-hwe-24.04",), "generic-hwe-24.04"),
        ("6.11.0-26-generic", ("linux-virtual-hwe-24.04",), "generic-hwe-24.04"),
        ("6.8.0-1030-azure", ("linux-azure", "linux-generic-hwe-24.04"), "azure"),
    ],
)
def test_modules_are_those_of_the_kernel_that_runs(
    agent: dict[str, Any], kernel: str, packages: tuple[str, ...], flavour: str
) -> None:
    open_ = f"linux-modules-nvidia-580-server-open-{flavour} nvidia-headless-no-dkms-580-server-open"
    closed = f"linux-modules-nvidia-580-server-{flavour} nvidia-headless-no-dkms-580-server"
    assert on(agent, kernel, *packages) == [f"{each} nvidia-utils-580-server" for each in (open_, closed)]
    for each in on(agent, kernel, *packages):
        agent["parse_package_set"](each)  # as keys of sets are


@pytest.mark.parametrize(
    ("vendor", "device_class", "with_it"),
    [("0x10de", "0x068000", True), ("0x15b3", "0x068000", False), ("0x10de", "0x030200", False)],
    ids=["an NVSwitch", "a bridge of others", "a GPU"],
)
def test_a_board_with_nvswitches_has_sets_with_its_fabric_manager(
    agent: dict[str, Any], tmp_path: Path, vendor: str, device_class: str, with_it: bool
) -> None:
    (tmp_path / "0000:05:00.0").mkdir()
    (tmp_path / "0000:05:00.0/vendor").write_text(f"{vendor}\n")
    (tmp_path / "0000:05:00.0/class").write_text(f"{device_class}\n")
    found = on(agent, "6.8.0-117-generic")
    assert ["nvidia-fabricmanager-580" in each.split(" ") for each in found] == [True] * 2 * with_it + [False] * 2
    for each in found:
        agent["parse_package_set"](each)  # as keys of sets are


@pytest.mark.parametrize("kernel", [WSL, "6.18.44-fc-v595", "6.1"])
def test_a_kernel_of_nobody_has_none(agent: dict[str, Any], kernel: str) -> None:
    assert on(agent, kernel) == []


def test_wsl_never_gets_a_driver_of_linux(agent: dict[str, Any]) -> None:
    on(agent, WSL)
    for name in (
        "nvidia-headless-no-dkms-580-server",
        "libnvidia-compute-580-server",
        "cuda-drivers",
        "nvidia-driver-580",
    ):
        with pytest.raises(agent["AgentFault"], match="driver of Windows") as caught:
            agent["refuse_gpu_driver_in_wsl"](["docker.io", name])
        assert caught.value.code == "Winhost.DriverInWsl"
    agent["refuse_gpu_driver_in_wsl"](["nvidia-container-toolkit", "docker.io", "nvidia-utils-580-server"])
    on(agent, "6.8.0-117-generic")
    agent["refuse_gpu_driver_in_wsl"](["cuda-drivers"])


def test_a_set_asks_before_it_installs(agent: dict[str, Any]) -> None:
    on(agent, WSL)
    coming = agent["Transaction"]({"linux-modules-nvidia-580-server-generic": "1"}, {}, {})
    with pytest.raises(agent["AgentFault"], match="driver of Windows"):
        agent["check_transaction"](coming, {})
