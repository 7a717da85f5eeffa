"""Judges of WSL containers (wslc)."""

from packaging.version import Version

from winhost.compat import common
from winhost.compat.common import SERVER_2022, SERVERS, WINDOWS_10_21H2
from winhost.compat.target import FIRST_WITH_CONTAINERS
from winhost.core.answers import MissingFact, RemoteFault, Unknown
from winhost.hardware.cards import runs_cuda
from winhost.resources.host import HostFacts
from winhost.resources.windows.wsl import Wsl


def wslc_on_old_windows(facts: HostFacts) -> str | None:
    """wslc uses the same kind of VM as WSL 2, and needs the same Windows for the GPU."""
    first = SERVER_2022 if facts.os.family in SERVERS else WINDOWS_10_21H2
    if facts.os.build < first:
        return facts.os.named
    return None


def wslc_not_there(facts: HostFacts) -> str | None:
    """wslc needs WSL 2.9 or newer."""
    found = _version(facts)
    if found is None or found < FIRST_WITH_CONTAINERS:
        return f"WSL {found or 'is not installed'}"
    return None


def wslc_without_gpu(facts: HostFacts) -> str | None:
    """NVIDIA's Windows driver runs none of the GPUs. GPUs of other vendors are wslc.no-cuda."""
    if not common.no_cuda(facts) and not any(runs_cuda(card) and card.gpu.state.driver_model for card in facts.cards):
        return "no GPU is run by NVIDIA's Windows driver"
    return None


def _version(facts: HostFacts) -> Version | None:
    """None where WSL is not installed. Raises MissingFact where WSL is installed and records no version."""
    wsl = facts.the(Wsl)
    if wsl.version is not None:
        return Version(wsl.version)
    if wsl.present:
        raise MissingFact("Wsl.version", Unknown(RemoteFault("NotThere", message="only the WSL in the box is there")))
    return None
