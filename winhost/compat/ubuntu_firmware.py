"""Rules of dual-boot and bare-metal about firmware, BitLocker, power and time."""

from collections.abc import Callable

from winhost.compat.rule import rule
from winhost.model.facts import Instance
from winhost.resources.host import HostFacts
from winhost.resources.windows.bit_locker import RECOVERY_PASSWORD, BitLocker
from winhost.resources.windows.fast_startup import FastStartup
from winhost.resources.windows.firmware_boot import FirmwareBoot
from winhost.resources.windows.hardware_clock import HardwareClock
from winhost.resources.windows.key_escrow import NONE, KeyEscrow
from winhost.resources.windows.power_source import PowerSource
from winhost.resources.windows.secure_boot import SecureBoot

# Who signs what starts Linux. "Windows UEFI CA 2023" is another one, and signs Windows alone.
THIRD_PARTY = ("Microsoft Corporation UEFI CA 2011", "Microsoft UEFI CA 2023")
USUAL_PCRS = {7, 11}


# --- Questions -----------------------------------------------------------------------------------------------------


@rule("dual-boot.not-uefi", "bare-metal.not-uefi")
def not_uefi(facts: HostFacts) -> str | None:
    """The firmware started Windows as a BIOS does."""
    kind = facts.the(FirmwareBoot).kind
    return None if kind == "uefi" else f"Windows was started by {kind.upper()}"


@rule("dual-boot.secure-boot-trust", "bare-metal.secure-boot-trust")
def nobody_signs(facts: HostFacts) -> str | None:
    """Secure Boot is on, and trusts nobody who signs a boot loader of Linux."""
    secure = facts.the(SecureBoot)
    if secure.state != "on" or set(secure.authorities) & set(THIRD_PARTY):
        return None
    return f"db has {', '.join(secure.authorities) or 'no certificate'}"


@rule("dual-boot.secure-boot-2023", "bare-metal.secure-boot-2023")
def only_new_signature(facts: HostFacts) -> str | None:
    """Secure Boot trusts only the certificate of 2023, which older installers are not signed with."""
    secure = facts.the(SecureBoot)
    trusted = set(secure.authorities) & set(THIRD_PARTY)
    return f"db has {THIRD_PARTY[1]} alone" if secure.state == "on" and trusted == {THIRD_PARTY[1]} else None


@rule("dual-boot.on-battery", "bare-metal.on-battery")
def on_battery(facts: HostFacts) -> str | None:
    """The host runs on a battery."""
    return "on battery" if facts.the(PowerSource).on_battery else None


# --- Beside Windows ------------------------------------------------------------------------------------------------


@rule("dual-boot.bitlocker")
def bitlocker_on(facts: HostFacts) -> str | None:
    """BitLocker protects a volume, so boot changes can trigger recovery, and nobody has proven that its key is kept."""
    volumes = ", ".join(volume for volume in _protected(facts) if volume not in _proven(facts))
    return f"protected: {volumes}" if volumes else None


@rule("dual-boot.bitlocker-kept")
def bitlocker_kept(facts: HostFacts) -> str | None:
    """BitLocker protects a volume, and it is proven that its recovery key is kept elsewhere."""
    proven = _proven(facts)
    told = ", ".join(f"{volume} by {proven[volume]}" for volume in _protected(facts) if volume in proven)
    return f"proven: {told}" if told else None


@rule("dual-boot.no-recovery-password")
def no_recovery_password(facts: HostFacts) -> str | None:
    """A protected volume has no recovery password: nothing opens it if the TPM does not."""
    volumes = _named(facts, lambda v: v.protection == "on" and RECOVERY_PASSWORD not in _kinds(v))
    return f"of {volumes}" if volumes else None


@rule("dual-boot.encryption-moves")
def encryption_moves(facts: HostFacts) -> str | None:
    """A volume is being encrypted or decrypted, or that was paused."""
    moving = [v for v in facts.all(BitLocker) if not v.state.conversion.startswith("fully-")]
    if moving:
        return ", ".join(f"{v.key['volume']} {v.state.conversion}, {v.state.percentage} %" for v in moving)
    return None


@rule("dual-boot.encryption-waits")
def encryption_waits(facts: HostFacts) -> str | None:
    """Device encryption waits for its owner: encrypted, with a key that lies open and nothing else to open it with."""
    volumes = _named(facts, lambda v: v.conversion == "fully-encrypted" and not v.protectors)
    return f"{volumes} without a protector" if volumes else None


@rule("dual-boot.bitlocker-unsettled")
def bitlocker_unsettled(facts: HostFacts) -> str | None:
    """A volume's BitLocker status is unknown: it is locked."""
    volumes = _named(facts, lambda volume: volume.protection == "unknown")
    return f"protection unknown: {volumes}" if volumes else None


@rule("dual-boot.pcrs")
def other_registers(facts: HostFacts) -> str | None:
    """A volume is bound to more of the TPM than Secure Boot: a new boot entry alone may ask for recovery."""
    bound = {each for volume in facts.all(BitLocker) for each in volume.state.pcrs if volume.state.protection == "on"}
    if bound - USUAL_PCRS:
        return f"bound to PCR {', '.join(map(str, sorted(bound)))}"
    return None


@rule("dual-boot.fast-startup")
def leaves_volumes_in_use(facts: HostFacts) -> str | None:
    """Hibernation or Fast Startup leave the volumes of Windows in use while it is off."""
    sleep = facts.the(FastStartup)
    if not sleep.hibernation:
        return None
    return "hibernation and Fast Startup are on" if sleep.fast_startup else "hibernation is on"


@rule("dual-boot.local-time")
def clock_in_local_time(facts: HostFacts) -> str | None:
    """Windows takes the hardware clock for local time, and Linux for UTC."""
    return None if facts.the(HardwareClock).utc else "RealTimeIsUniversal is not 1"


# --- Instead of Windows --------------------------------------------------------------------------------------------


@rule("bare-metal.bitlocker")
def volumes_lost(facts: HostFacts) -> str | None:
    """BitLocker protects a volume: what is taken off it has to be taken while Windows runs."""
    volumes = _named(facts, lambda volume: volume.protection == "on")
    return f"protected: {volumes}" if volumes else None


@rule("bare-metal.tpm")
def keys_in_the_tpm(facts: HostFacts) -> str | None:
    """Keys of this Windows are sealed in the TPM, and open nothing for another system."""
    volumes = _named(facts, lambda volume: any(kind.startswith("tpm") for kind in _kinds(volume)))
    return f"keys of {volumes} are sealed in it" if volumes else None


# --- What they share -----------------------------------------------------------------------------------------------


def _named(facts: HostFacts, fits: Callable[[BitLocker], bool]) -> str:
    volumes: tuple[Instance[BitLocker], ...] = facts.all(BitLocker)
    return ", ".join(volume.key["volume"] for volume in volumes if fits(volume.state))


def _protected(facts: HostFacts) -> list[str]:
    return [volume.key["volume"] for volume in facts.all(BitLocker) if volume.state.protection == "on"]


def _proven(facts: HostFacts) -> dict[str, str]:
    """How the key of each volume was proven to be kept, and by which protector."""
    proofs = [each for each in facts.all(KeyEscrow) if each.state.proof != NONE]
    return {each.key["volume"]: f"{each.state.proof} (protector {each.state.protector})" for each in proofs}


def _kinds(volume: BitLocker) -> set[str]:
    return {protector.kind for protector in volume.protectors}
