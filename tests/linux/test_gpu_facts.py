"""GPUs as a Linux sees them, from a PCI bus made of files and the words of a real nvidia-smi."""

from pathlib import Path

import pytest

pytest.importorskip("fcntl")  # the agent runs on Linux alone

from winhost.agent import linux_gpus
from winhost.agent.linux_agent import AgentFault

# As an H200 in a VM said on 2026-11-23, with driver 580.159.04.
LISTED = "00000000:00:06.0, GPU-5c359835-765f-d5c4-2c96-93e7c73706aa, NVIDIA H200, 143771\n"
RESOURCE = """\
0x00000000fb000000 0x00000000fbffffff 0x0000000000040200
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000004000000000 0x0000007fffffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000008000000000 0x0000008001ffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x00000000fc000000 0x00000000fc07ffff 0x0000000000046202
"""


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(linux_gpus, "PCI", tmp_path / "bus")
    for address, device_class in (("0000:00:06.0", "0x030200"), ("0000:00:07.0", "0x040300")):
        device = tmp_path / "devices" / address
        device.mkdir(parents=True)
        texts = {"vendor": "0x10de", "device": "0x2335", "class": device_class, "numa_node": "-1", "resource": RESOURCE}
        for name, text in texts.items():
            (device / name).write_text(f"{text}\n")
        (tmp_path / "drivers/nvidia").mkdir(parents=True, exist_ok=True)
        (device / "driver").symlink_to(tmp_path / "drivers/nvidia")
        (tmp_path / "bus").mkdir(exist_ok=True)
        (tmp_path / "bus" / address).symlink_to(device)
    return tmp_path / "bus"


def said(monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    def must(program: str, *arguments: str, within: float = 60) -> str:
        if text is None:
            raise AgentFault("Winhost.ProgramTimedOut", "OperationTimeout", "it hangs", program)
        return text

    monkeypatch.setattr(linux_gpus, "find_program", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(linux_gpus, "run_checked", must)


def test_a_gpu_has_its_bars_its_driver_and_what_nvidia_smi_says(bus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said(monkeypatch, LISTED)
    ((address, state),) = linux_gpus.gpus()
    assert address == "0000:00:06.0"
    assert [(bar["index"], bar["size"], bar["prefetchable"]) for bar in state.pop("bars")] == [
        (0, 16 << 20, False),
        (2, 256 << 30, True),
        (4, 32 << 20, True),
    ]
    assert state == {
        "device": "10de:2335",
        "driver": "nvidia",
        "numa": None,
        "name": "NVIDIA H200",
        "uuid": "GPU-5c359835-765f-d5c4-2c96-93e7c73706aa",
        "vram": 143771 << 20,
    }


def test_a_gpu_stays_known_where_nvidia_smi_hangs(bus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said(monkeypatch, None)
    ((_, state),) = linux_gpus.gpus()
    assert state["driver"] == "nvidia"
    assert state["name"]["unknown"]["code"] == "Winhost.ProgramTimedOut"


def test_in_wsl_a_gpu_is_known_by_nvidia_smi_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux_gpus, "PCI", tmp_path / "none")
    said(monkeypatch, LISTED)
    ((_, state),) = linux_gpus.gpus()
    assert (state["device"], state["bars"], state["name"]) == (None, [], "NVIDIA H200")


def test_without_nvidia_smi_nothing_is_made_up(bus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux_gpus, "find_program", lambda program: None)
    ((_, state),) = linux_gpus.gpus()
    assert (state["name"], state["uuid"], state["vram"]) == (None, None, None)


@pytest.mark.parametrize(
    "said",
    [
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC version: 15\n",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Thu Nov  6 01:02:03 UTC 2025\n",
    ],
)
def test_a_driver_whose_module_tells_no_version_tells_it_itself(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen on an H200 in a VM on 2026-11-27: /sys/module/nvidia had no file `version`."""
    (tmp_path / "version").write_text(said)
    monkeypatch.setattr(linux_gpus, "RUNNING_MODULE", str(tmp_path / "none"))
    monkeypatch.setattr(linux_gpus, "RUNNING_DRIVER", str(tmp_path / "version"))
    assert linux_gpus.loaded_driver() == "580.159.04"
    (tmp_path / "version").unlink()
    assert linux_gpus.loaded_driver() is None
