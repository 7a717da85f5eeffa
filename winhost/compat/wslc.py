"""Rules of WSL containers (wslc), a preview."""

from packaging.version import Version

from winhost.compat import common
from winhost.compat.builds import SERVER_2022, WINDOWS_10_21H2
from winhost.compat.common import SERVERS, ask
from winhost.compat.rule import BLOCKS, NOTES, Finding, note, rule, unsupported, unverified
from winhost.core.answers import MissingFact, RemoteFault, Unknown
from winhost.hardware.cards import runs_cuda
from winhost.resources.host import HostFacts
from winhost.resources.windows.wsl import Wsl

FIRST_WITH_CONTAINERS = Version("2.9")


@rule("wslc", unknown=BLOCKS)
def wslc_is_a_preview(facts: HostFacts) -> Finding | None:
    """wslc is a public preview, so it never outranks a stable path. This holds on every host."""
    return unverified("wslc.preview", observed=facts.os.named)


@rule("wslc", unknown=BLOCKS)
def wslc_on_old_windows(facts: HostFacts) -> Finding | None:
    """wslc uses the same kind of VM as WSL 2, and needs the same Windows for the GPU."""
    first = SERVER_2022 if facts.os.family in SERVERS else WINDOWS_10_21H2
    if facts.os.build < first:
        return unsupported("wslc.windows-too-old", observed=facts.os.named)
    return None


@rule("wslc", unknown=BLOCKS)
def wslc_not_there(facts: HostFacts) -> Finding | None:
    """wslc needs WSL 2.9 or newer, a pre-release."""
    found = _version(facts)
    if found is None or found < FIRST_WITH_CONTAINERS:
        return note("wslc.needs-prerelease", observed=f"WSL {found or 'is not installed'}")
    return None


ask("wslc.language-mode", common.language_mode, unsupported, unknown=NOTES)
ask("wslc.powershell-32bit", common.powershell_32bit, unsupported, unknown=NOTES)
ask("wslc.unsigned-scripts", common.unsigned_scripts, note, unknown=NOTES)
ask("wslc.virtualization-off", common.virtualization_off, unsupported, unknown=BLOCKS)
ask("wslc.tcc-invisible", common.tcc_invisible, unsupported, unknown=BLOCKS)


@rule("wslc", unknown=BLOCKS)
def wslc_without_gpu(facts: HostFacts) -> Finding | None:
    """NVIDIA's Windows driver runs none of the GPUs. GPUs of other vendors are wslc.no-cuda."""
    if not common.no_cuda(facts) and not any(runs_cuda(card) and card.gpu.state.driver_model for card in facts.cards):
        return unsupported("wslc.no-gpu", observed="no GPU is run by NVIDIA's Windows driver")
    return None


ask("wslc.no-cuda", common.no_cuda, unsupported, unknown=NOTES)


def _version(facts: HostFacts) -> Version | None:
    """None where WSL is not installed. Raises MissingFact where WSL is installed and records no version."""
    wsl = facts.the(Wsl)
    if wsl.version is not None:
        return Version(wsl.version)
    if wsl.present:
        raise MissingFact("Wsl.version", Unknown(RemoteFault("NotThere", message="only the WSL in the box is there")))
    return None
