"""The settings of Hyper-V."""

from winhost.resources.base import ResourceType, State, resource


@resource(ResourceType("HyperVHost", title="the settings of Hyper-V", order=100, requires="HyperVRole"))
class HyperVHost(State):
    """The hypervisor's report about itself. iov_support is a proxy for IOMMU and ACS, not a verdict on DDA."""

    iov_support: bool
    iov_reasons: tuple[str, ...]
    service: str
