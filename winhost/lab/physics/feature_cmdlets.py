"""Features of a simulated Windows: roles of a server, optional features of a client, and the restart they wait for."""

from collections.abc import Mapping

from winhost.lab.physics.cmdlet_host import CmdletHost, as_cmdlet
from winhost.lab.physics.windows_software import PENDING, Software

ROLE, TOOLS = "Hyper-V", "Hyper-V-PowerShell"  # names of the Windows features
CLIENT_ROLE, CLIENT_TOOLS = "Microsoft-Hyper-V-All", "Microsoft-Hyper-V-Management-PowerShell"  # the same on a client
PLATFORM = "VirtualMachinePlatform"

_SERVICING = "servicing"
_REASONS = (_SERVICING, "windows-update", "server-manager", "file-rename", "computer-rename")  # of PendingReboot


class FeatureCmdlets(CmdletHost):
    """Cmdlets of ServerManager and DISM."""

    software: Software

    @as_cmdlet("Install-WindowsFeature")
    def install_windows_feature(self, *names: str) -> bool:
        """Whether a restart is needed."""
        self._check_features("Install-WindowsFeature")
        if ROLE in names and not self._virtualization:
            raise self.fail("no-virtualization", "Install-WindowsFeature")
        gone = [name for name, state in ((ROLE, self._role), (TOOLS, self._tools)) if state == "removed"]
        if set(gone) & set(names):
            raise self.fail("feature-files-gone", "Install-WindowsFeature")
        if TOOLS in names:
            self._tools = "installed"
        if ROLE in names:
            self._role = {"available": "install-pending", "uninstall-pending": "installed"}.get(self._role, self._role)
        return self._await_restart()

    @as_cmdlet("Uninstall-WindowsFeature")
    def uninstall_windows_feature(self, *names: str) -> bool:
        """Whether a restart is needed. VM definitions stay on disk."""
        self._check_features("Uninstall-WindowsFeature")
        if TOOLS in names:
            self._tools = {"removed": "removed"}.get(self._tools, "available")
        if ROLE in names:
            self._role = {"installed": "uninstall-pending", "install-pending": "available"}.get(self._role, self._role)
        return self._await_restart()

    def _check_features(self, cmdlet: str) -> None:
        if self.is_client:
            raise self.fail("no-module", cmdlet)

    def _await_restart(self) -> bool:
        pending = self._role in PENDING or self.software.platform in PENDING
        self._reasons = [reason for reason in self._reasons if reason != _SERVICING]
        if pending:
            self.await_restart(_SERVICING)
        return pending

    def await_restart(self, reason: str) -> None:
        """Something takes effect with the next restart only."""
        self._reasons = [known for known in _REASONS if known in (reason, *self._reasons)]

    @property
    def optional_features(self) -> Mapping[str, str]:
        """Those that Windows lists, in the words of resource HyperVRole; an edition that lacks one does not list it."""
        clients = {CLIENT_ROLE: self._role, CLIENT_TOOLS: self._tools} if self.is_client else {}
        every = {"TelnetClient": "available", PLATFORM: self.software.platform, **clients}
        return {name: state for name, state in every.items() if state != "removed"}

    @as_cmdlet("Enable-WindowsOptionalFeature")
    def enable_windows_optional_feature(self, *names: str) -> bool:
        """Whether a restart is needed. The tools come with Hyper-V as a whole."""
        self._check_optional(names, "Enable-WindowsOptionalFeature")
        coming = {"available": "install-pending", "uninstall-pending": "installed"}
        if PLATFORM in names:
            self.software.platform = coming.get(self.software.platform, self.software.platform)
        if CLIENT_ROLE in names:
            self._role = coming.get(self._role, self._role)
        if CLIENT_ROLE in names or CLIENT_TOOLS in names:
            self._tools = "installed"
        return self._await_restart()

    @as_cmdlet("Disable-WindowsOptionalFeature")
    def disable_windows_optional_feature(self, *names: str) -> bool:
        """Whether a restart is needed. Hyper-V as a whole takes its tools with it; VM definitions stay on disk."""
        self._check_optional(names, "Disable-WindowsOptionalFeature")
        going = {"installed": "uninstall-pending", "install-pending": "available"}
        if PLATFORM in names:
            self.software.platform = going.get(self.software.platform, self.software.platform)
        if CLIENT_ROLE in names:
            self._role = going.get(self._role, self._role)
        if CLIENT_ROLE in names or CLIENT_TOOLS in names:
            self._tools = "available"
        return self._await_restart()

    def _check_optional(self, names: tuple[str, ...], cmdlet: str) -> None:
        for name in names:
            if name not in self.optional_features:
                raise self.fail("feature-unknown", cmdlet, feature=name)

    @property
    def runs_wsl(self) -> bool:
        """Whether the VM of WSL can be made."""
        return self._hypervisor and self.software.has_platform

    def _wants_hypervisor(self) -> bool:
        return self._service_there or self.software.has_platform
