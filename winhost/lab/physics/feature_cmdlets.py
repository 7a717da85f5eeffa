"""Features of a simulated Windows: roles of a server, optional features of a client, and the restart they wait for."""

from collections.abc import Callable, Mapping, Sequence

from winhost.core.answers import Json
from winhost.lab.physics.cmdlet_host import CmdletHost
from winhost.lab.physics.parts import SetCall, as_cmdlet
from winhost.lab.physics.windows_errors import own_error
from winhost.lab.physics.windows_software import PENDING, Software

ROLE, TOOLS = "Hyper-V", "Hyper-V-PowerShell"  # names of the Windows features
CLIENT_ROLE, CLIENT_TOOLS = "Microsoft-Hyper-V-All", "Microsoft-Hyper-V-Management-PowerShell"  # the same on a client
PLATFORM = "VirtualMachinePlatform"

# Of a feature that takes a restart to come or to go.
_COMING = {"available": "install-pending", "uninstall-pending": "installed"}
_GOING = {"installed": "uninstall-pending", "install-pending": "available"}
_SERVICING = "servicing"
_REASONS = (_SERVICING, "windows-update", "server-manager", "file-rename", "computer-rename")  # of PendingReboot


class FeatureCmdlets(CmdletHost):
    """Cmdlets of ServerManager and DISM."""

    software: Software

    @as_cmdlet("Install-WindowsFeature")
    def install_windows_feature(self, *names: str) -> bool:
        """Return True if a restart is needed."""
        self._check_features("Install-WindowsFeature")
        if ROLE in names and not self._virtualization:
            raise self.fail("no-virtualization", "Install-WindowsFeature")
        gone = [name for name, state in ((ROLE, self._role), (TOOLS, self._tools)) if state == "removed"]
        if set(gone) & set(names):
            raise self.fail("feature-files-gone", "Install-WindowsFeature")
        return self._change(names, _COMING, tools="installed")

    @as_cmdlet("Uninstall-WindowsFeature")
    def uninstall_windows_feature(self, *names: str) -> bool:
        """Return True if a restart is needed. VM definitions stay on disk."""
        self._check_features("Uninstall-WindowsFeature")
        return self._change(names, _GOING, tools="removed" if self._tools == "removed" else "available")

    def _check_features(self, cmdlet: str) -> None:
        if self.is_client:
            raise self.fail("no-module", cmdlet)

    def _change(self, names: Sequence[str], to: Mapping[str, str], *, tools: str) -> bool:
        """Return True if a restart is needed. On a client the tools come and go with Hyper-V as a whole."""
        if PLATFORM in names:
            self.software.platform = to.get(self.software.platform, self.software.platform)
        if ROLE in names or CLIENT_ROLE in names:
            self._role = to.get(self._role, self._role)
        if {TOOLS, CLIENT_ROLE, CLIENT_TOOLS} & set(names):
            self._tools = tools
        self._reasons = [reason for reason in self._reasons if reason != _SERVICING]
        pending = self._role in PENDING or self.software.platform in PENDING
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
        """Return True if a restart is needed."""
        self._check_optional(names, "Enable-WindowsOptionalFeature")
        return self._change(names, _COMING, tools="installed")

    @as_cmdlet("Disable-WindowsOptionalFeature")
    def disable_windows_optional_feature(self, *names: str) -> bool:
        """Return True if a restart is needed. VM definitions stay on disk."""
        self._check_optional(names, "Disable-WindowsOptionalFeature")
        return self._change(names, _GOING, tools="available")

    def _check_optional(self, names: tuple[str, ...], cmdlet: str) -> None:
        for name in names:
            if name not in self.optional_features:
                raise self.fail("feature-unknown", cmdlet, feature=name)

    # ---- as resources

    def set_role(self, asked: SetCall) -> bool:
        """Hyper-V and its tools."""
        role, tools = (CLIENT_ROLE, CLIENT_TOOLS) if self.is_client else (ROLE, TOOLS)
        states = {
            name: asked.desired[part] for name, part in ((role, "role"), (tools, "tools")) if part in asked.desired
        }
        if self.is_client:
            return self._set_optional(states)
        return self._install(states, self.install_windows_feature, self.uninstall_windows_feature)

    def set_platform(self, asked: SetCall) -> bool:
        """Virtual Machine Platform."""
        return self._set_optional({PLATFORM: asked.desired["feature"]})

    def _set_optional(self, states: Mapping[str, Json]) -> bool:
        for name in sorted(states):
            if name not in self.optional_features:
                message = f"This edition of Windows has no feature {name}, or its files were removed."
                raise own_error("FeatureNotHere", "NotInstalled", message)
        return self._install(states, self.enable_windows_optional_feature, self.disable_windows_optional_feature)

    def _install(self, states: Mapping[str, Json], install: Callable[..., bool], remove: Callable[..., bool]) -> bool:
        coming = sorted(name for name, state in states.items() if state == "installed")
        going = sorted(name for name, state in states.items() if state == "available")
        restart = bool(coming) and install(*coming)
        return (bool(going) and remove(*going)) or restart

    @property
    def runs_wsl(self) -> bool:
        """Tell whether the VM of WSL can be made."""
        return self._hypervisor and self.software.has_platform

    def _wants_hypervisor(self) -> bool:
        return self._service_runs or self.software.has_platform
