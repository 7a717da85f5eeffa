"""Firmware and what it gives to a hypervisor."""

from typing import Annotated

from winhost.resources.base import NOT_TOLD, ResourceType, State, Within, resource

DMA_PROTECTION = 3  # Win32_DeviceGuard.AvailableSecurityProperties


@resource(ResourceType("Firmware", title="the firmware", order=40))
class Firmware(State):
    """Firmware, virtualization and IOMMU, as far as Windows exposes them.

    virtualization_enabled and second_level_translation read false once a hypervisor runs: ask hypervisor_present first.
    security_properties: of Win32_DeviceGuard; 3 (DMA protection) is the best hint at an IOMMU before the role is there.
    address_width: physical address bits; no Windows interface exposes them, so a real host answers unknown.
    serial: of the machine, as its maker wrote it, which may be a placeholder; null where there is none.
    """

    manufacturer: str
    model: str
    bios_version: str
    hypervisor_present: bool
    virtualization_enabled: bool
    second_level_translation: bool
    security_properties: tuple[int, ...]
    address_width: Annotated[int, Within(1, 64)]
    serial: str | None = NOT_TOLD
