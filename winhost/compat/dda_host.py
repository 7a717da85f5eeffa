"""Rules of Discrete Device Assignment (DDA): the host, before any GPU or VM."""

from contextlib import suppress

from winhost.compat.rule import rule
from winhost.core.answers import MissingFact
from winhost.hardware.processors import DESKTOP, MOBILE, known_processor
from winhost.model.units import GiB, size
from winhost.paths.dda_mmio import address_width, width_by_model
from winhost.resources.host import HostFacts
from winhost.resources.windows.firmware import DMA_PROTECTION
from winhost.resources.windows.operating_system import OsFamily
from winhost.resources.windows.processor import Processor

FIRST_HIGH_ADDRESS = 64 * GiB  # the high window begins just below it, so a card's BARs come to lie above


@rule("dda.product-type-altered")
def product_type_altered(facts: HostFacts) -> str | None:
    """A tool changed the product type to a server's to unlock DDA; the edition still is a client's."""
    os = facts.os
    if os.family is OsFamily.ALTERED:
        types = f"product type {os.product_type}, ProductOptions {os.product_options}"
        return f"{os.named}, {types}"
    return None


@rule("dda.management-stopped")
def management_stopped(facts: HostFacts) -> str | None:
    """The service vmms does not run; without it VMs can be neither read nor changed."""
    if facts.hyperv.service.casefold() != "running":
        return f"the service vmms is {facts.hyperv.service}"
    return None


@rule("dda.iommu-not-seen")
def iommu_not_seen(facts: HostFacts) -> str | None:
    """Device Guard does not list DMA protection, the only sign of an IOMMU that Windows gives before Hyper-V runs."""
    properties = facts.firmware.security_properties
    if DMA_PROTECTION not in properties:
        seen = ", ".join(map(str, properties)) or "none"
        return f"Device Guard's available properties: {seen}"
    return None


@rule("dda.narrow-addresses")
def narrow_addresses(facts: HostFacts) -> str | None:
    """The physical address space ends at or below 64 GiB, where windows begin that are larger than the default one."""
    width = address_width(facts) or facts.firmware.address_width  # which says what is missing
    if 1 << width <= FIRST_HIGH_ADDRESS:
        return f"{width} address bits, {size(1 << width)}"
    return None


@rule("dda.width-by-model")
def width_of_the_model(facts: HostFacts) -> str | None:
    """Windows does not report the width of physical addresses; that of the processors' model is taken."""
    with suppress(MissingFact):
        _ = facts.firmware.address_width
        return None
    width, known = width_by_model(facts), ", ".join(_generations(facts))
    if width is None:
        return None
    return f"Firmware.address_width is not told; {width} bits by {known}"


@rule("dda.desktop-hardware")
def desktop_hardware(facts: HostFacts) -> str | None:
    """The processors are those of desktop computers or notebooks; Microsoft requires server-class hardware."""
    names = [each.state.name for each in facts.all(Processor)]
    if any((found := known_processor(name)) and found.hardware in (DESKTOP, MOBILE) for name in names):
        return ", ".join(dict.fromkeys(names))
    return None


@rule("dda.processor-unlisted")
def processor_unlisted(facts: HostFacts) -> str | None:
    """A processor is not in the catalogue, so neither its class nor the width of its addresses is known."""
    names = [each.state.name for each in facts.all(Processor) if known_processor(each.state.name) is None]
    return ", ".join(dict.fromkeys(names)) if names else None


def _generations(facts: HostFacts) -> list[str]:
    found = [known_processor(each.state.name) for each in facts.all(Processor)]
    return list(dict.fromkeys(f"{each.generation} ({each.kind})" for each in found if each))


@rule("dda.policy-requires-secure")
def policy_requires_secure(facts: HostFacts) -> str | None:
    """The policy RequireSecureDeviceAssignment is set. winhost reads it and never changes it."""
    if facts.policy.require_secure:
        return f"RequireSecureDeviceAssignment is {facts.policy.require_secure}"
    return None


@rule("dda.policy-requires-supported")
def policy_requires_supported(facts: HostFacts) -> str | None:
    """The policy RequireSupportedDeviceAssignment is set. winhost reads it and never changes it."""
    if facts.policy.require_supported:
        return f"RequireSupportedDeviceAssignment is {facts.policy.require_supported}"
    return None
