"""The settings of Discrete Device Assignment."""

from pydantic import Field

from winhost.model.written import Closed
from winhost.paths.linux import LinuxSettings
from winhost.paths.new_vm import NewVm
from winhost.paths.setting_values import PublishedEndpoint


class DdaSettings(Closed):
    """`settings` of the playbook, or `winhost plan --set NAME=VALUE`."""

    never_sleep: bool = False
    """Set the active power plan never to sleep or hibernate on AC power."""
    address_width: int | None = Field(default=None, ge=32, le=64)
    """Physical address bits of the host's processors, which Windows does not report: as Start-VM has said, or the
    documents of the processor. Left out, by the model of the processors where that is known.
    """
    new_vm: NewVm | None = None
    """A VM that winhost makes for the GPUs. Left out, they go to one that is there already."""
    containers: LinuxSettings | None = None
    """The container runtime in the guest that winhost sets up, as the path linux has it. Left out: nothing, unless a
    workload is to be served there.
    """
    endpoint: PublishedEndpoint | None = None
    """The endpoint in the guest for other machines: behind NAT Windows forwards its port. `--workload` sets it."""
