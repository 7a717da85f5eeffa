"""What a facts file cannot tell: the hidden physics of a simulated host, `lab:` in its host file."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

_CLOSED = ConfigDict(extra="forbid", frozen=True)


class DevicePhysics(BaseModel):
    """Of one PCI function, by its location path. BARs in bytes; left out, they follow from the surveyed ranges."""

    model_config = _CLOSED

    mitigation_driver: bool = Field(default=False, description="dismounts without -Force")
    in_use: bool = Field(default=False, description="a program holds it: it cannot be disabled")
    bars64: tuple[int, ...] | None = None
    bars32: tuple[int, ...] | None = None


class GuestPhysics(BaseModel):
    """Of one VM's guest, by the VM's GUID."""

    model_config = _CLOSED

    answers: bool = Field(default=True, description="shuts down when asked")
    shutdown_seconds: float = 20


class LabSection(BaseModel):
    """All times in lab seconds."""

    model_config = _CLOSED

    language: str | None = Field(default=None, description="of messages; left out, the operating system's")
    administrator: bool = True
    iommu: bool | None = Field(default=None, description="left out, as DMA protection and IovSupport say")
    address_width: int | None = Field(default=None, description="in bits; left out, as the facts say, or 46")
    guest_order: Literal["assigned", "reversed"] = Field(
        default="assigned", description="in which order guests meet their devices"
    )
    renumbers_on_restart: bool = Field(default=False, description="a restart gives devices new instance ids")
    restart_delay: float = 2
    reboot_seconds: float = 90
    logon_seconds: float = Field(default=5, description="from the wire's return to logon_ready")
    servicing_seconds: float = Field(default=10, description="of finishing a role after the restart")
    seconds: Mapping[str, float] = Field(default_factory=dict, description="how long a cmdlet takes, by its name")
    devices: Mapping[str, DevicePhysics] = Field(default_factory=dict)
    guests: Mapping[str, GuestPhysics] = Field(default_factory=dict)
    hidden: Mapping[str, tuple[Mapping[str, Any], ...]] = Field(
        default_factory=dict, description="instances that are there but do not show in the facts, by noun"
    )
