"""The edition of Windows. Builds do not decide it: 26100 is Server 2025, Windows 11 24H2 and Azure Local 24H2 alike."""

from collections.abc import Callable
from enum import StrEnum

from winhost.core.answers import MissingFact
from winhost.resources.base import ResourceType, State, resource

SKU_MULTI_SESSION = 175
SKU_AZURE_LOCAL = 406
WORKSTATION = 1


class OsFamily(StrEnum):
    """The family that the six values add up to. ALTERED: a client whose product type was flipped to look like a
    server.
    """

    SERVER = "server"
    CLIENT = "client"
    MULTI_SESSION = "multi-session"
    AZURE_LOCAL = "azure-local"
    ALTERED = "product type altered"


@resource(ResourceType("OperatingSystem", title="the operating system", order=20))
class OperatingSystem(State):
    """The six values that decide the family, and what identifies the host.

    product_type: 1 workstation, 2 domain controller, 3 server (Win32_OperatingSystem); sku: OperatingSystemSKU;
    product_options: WinNT, ServerNT or LanmanNT (registry); machine_id: the SMBIOS UUID, which survives renaming.
    """

    hostname: str
    machine_id: str
    caption: str
    product_type: int
    sku: int
    edition_id: str
    installation_type: str
    product_options: str
    build: int
    revision: int
    display_version: str | None
    language: str
    architecture: str

    @property
    def family(self) -> OsFamily:
        """Edition first: product types lie on multi-session (3 on a client) and where a tool flipped them."""
        edition = self.edition_id.casefold()
        if self.sku == SKU_AZURE_LOCAL or edition.startswith("serverazurestackhci"):
            return OsFamily.AZURE_LOCAL
        if self.sku == SKU_MULTI_SESSION or edition == "serverrdsh":
            return OsFamily.MULTI_SESSION
        if edition.startswith("server"):
            return OsFamily.SERVER
        if self.product_type != WORKSTATION or self.product_options.casefold() != "winnt":
            return OsFamily.ALTERED
        return OsFamily.CLIENT

    @property
    def named(self) -> str:
        """The caption with edition, SKU and build, `not known` for each that was not read."""
        details = (
            _or_not_known(lambda: self.edition_id),
            _or_not_known(lambda: self.sku),
            _or_not_known(lambda: self.build),
        )
        return "{} (edition {}, SKU {}, build {})".format(_or_not_known(lambda: self.caption), *details)


def _or_not_known(read: Callable[[], object]) -> str:
    try:
        return str(read())
    except MissingFact:
        return "not known"
