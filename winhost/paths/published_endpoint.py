"""An endpoint in the Linux of a Windows host that other machines reach: what Windows opens and forwards for it."""

from ipaddress import IPv4Network, IPv6Network
from typing import Annotated

from pydantic import Field

from winhost.model.written import Closed


class PublishedEndpoint(Closed):
    """The endpoint's address and who may reach it. `winhost plan --workload` sets it, by --listen and --allow."""

    port: Annotated[int, Field(strict=True, ge=1, le=65535)] = Field(
        description="Of the Linux, and the same of Windows where that forwards it."
    )
    allow: tuple[IPv4Network | IPv6Network, ...] = Field(description="Networks that may come to it.")

    @property
    def networks(self) -> list[str]:
        """The allowed networks in the form that resources take."""
        return sorted(map(str, self.allow))

    @property
    def who(self) -> str:
        """The allowed networks in words, for the reader of a plan."""
        return f"{', '.join(self.networks)} (--allow)"
