"""Forwarded ports of a simulated host, its firewall, and the firewall for VMs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Any

from winhost.core.answers import Json, Record
from winhost.lab.physics.parts import Change, Host, Part, SetCall, as_cmdlet
from winhost.lab.physics.windows_errors import refuse_if
from winhost.resources.windows.network import WSL

HYPER_V_FIREWALL = 22621  # the first build with a firewall for VMs
ANY_ADDRESS = "Any"  # the remote address of a rule that admits everybody
VM_RULE = "winhost-vm-port-"  # prefix of rules in the firewall for VMs
_PROXIES = "SYSTEM\\CurrentControlSet\\Services\\PortProxy\\v4tov4\\tcp"


class Firewalls(Part):
    """The forwards and firewalls of one host. Its methods are cmdlets in snake case, and netsh.exe."""

    administrator_settable = ("PortForward",)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.proxies = dict(host.lab.port_proxies)  # listening port to address/port, as the registry has it
        self.rules: dict[str, list[str]] = {}  # name to admitted networks; none if the rule is disabled
        self.inbound = "not-configured"
        self.vm_rules: dict[int, list[str]] = {}  # port of VMs to admitted networks
        self._due_failures = list(host.lab.network_fails)
        builds = [record.state["build"] for record in host.instances("OperatingSystem")]
        self.has_hyper_v_firewall = any(isinstance(build, int) and build >= HYPER_V_FIREWALL for build in builds)
        for record in host.instances("PortForward"):
            port = record.key["port"]
            if record.state["target"] is not None:
                self.proxies[port] = f"{record.state['target']}/{record.state['connect_port']}"
            self.rules[rule_name(port)] = list(record.state["allowed"])
        for record in host.instances("HyperVFirewall"):
            self.inbound = record.state["inbound"]
            self.vm_rules = {each: list(record.state["allowed"] or [ANY_ADDRESS]) for each in record.state["ports"]}
        host.registry_keys.append(self._proxy_keys)

    def _proxy_keys(self) -> list[tuple[str, Mapping[str, Json]]]:
        return [(_PROXIES, {f"0.0.0.0/{port}": to for port, to in self.proxies.items()})]

    def records(self) -> Mapping[str, Callable[[], Iterable[Record]]]:
        return {"PortForward": self._list_forwards, "HyperVFirewall": self._list_firewall}

    def changes(self) -> Mapping[str, Change]:
        return {"PortForward": self.set_forward, "HyperVFirewall": self.set_firewall}

    def set_forward(self, call: SetCall) -> None:
        """Set a forward and its firewall rule. The rule is disabled while the forward changes. Raises CmdletError."""
        port = call.key["port"]
        before = next((r.state for r in self._list_forwards() if r.key["port"] == port), {})
        desired = {**before, **call.desired}
        parts: list[Any] = [desired.get(each) or None for each in ("target", "connect_port", "allowed")]
        target, connect, allowed = parts
        name = rule_name(port)
        if name in self.rules:
            self.set_net_firewall_rule(name, [])
        if any(parts):
            if name not in self.rules:
                self.new_net_firewall_rule(name)
            self._netsh("set", f"listenport={port}", f"connectaddress={target}", f"connectport={connect}")
            self.set_net_firewall_rule(name, allowed)
            return
        if port in self.proxies:
            self._netsh("delete", f"listenport={port}")
        if name in self.rules:
            self.remove_net_firewall_rule(name)

    def _netsh(self, verb: str, *ends: str) -> None:
        code, output = self.run_netsh([verb, "v4tov4", *ends])
        refuse_if(code, "NetshFailed", code=code, output=output)

    def set_firewall(self, call: SetCall) -> None:
        """Set the firewall for the VMs of WSL. Raises CmdletError."""
        ports = list(call.desired.get("ports", self.vm_rules))
        allowed = call.desired.get("allowed", self.vm_allowed())
        if "inbound" in call.desired:
            self.set_net_firewall_hyper_v_vm_setting(call.desired["inbound"])
        if not call.desired.keys() & {"ports", "allowed"}:
            return
        for port in list(self.vm_rules):
            self.remove_net_firewall_hyper_v_rule(f"{VM_RULE}{port}")
        for port in ports:
            self.new_net_firewall_hyper_v_rule(port, allowed or ())

    def _list_forwards(self) -> Iterator[Record]:
        for name, allowed in self.rules.items():
            port = name.removeprefix(rule_name(""))
            target, _, connect = self.proxies.get(port, "").partition("/")
            state = {"target": target or None, "connect_port": int(connect) if connect else None}
            yield Record({**state, "allowed": list(allowed)}, {"port": port})

    def _list_firewall(self) -> Iterator[Record]:
        if self.has_hyper_v_firewall:
            state = {"inbound": self.inbound, "ports": list(self.vm_rules), "allowed": self.vm_allowed()}
            yield Record(state, {"creator": WSL})

    def vm_allowed(self) -> list[str] | None:
        """Return the networks that may reach the ports of VMs that winhost opened; None: all networks."""
        networks = [each for remote in self.vm_rules.values() for each in remote]
        return None if ANY_ADDRESS in networks else list(dict.fromkeys(networks)) or None

    def run_netsh(self, arguments: list[str]) -> tuple[int, str]:
        """Run `netsh interface portproxy set|delete v4tov4`; return its exit code and output."""
        options = dict(word.partition("=")[::2] for word in arguments[2:])
        if not self.host.lab.administrator:
            return 1, "The requested operation requires elevation (Run as administrator)."
        if self._should_fail(f"netsh.exe {arguments[0]}"):
            return 1, "The system cannot find the file specified."
        if arguments[0] == "set":
            self.proxies[options["listenport"]] = f"{options['connectaddress']}/{options['connectport']}"
        elif self.proxies.pop(options["listenport"], None) is None:
            return 1, "The system cannot find the file specified."
        return 0, ""

    @as_cmdlet(
        "New-NetFirewallRule",
        "DisplayName Group Direction Action Protocol LocalPort RemoteAddress",
        name="Name",
        enabled="Enabled",
    )
    def new_net_firewall_rule(self, name: str, enabled: str = "False") -> None:
        """Make a disabled rule."""
        assert enabled == "False", "an enabled rule would admit everybody until its networks are set"
        self._check_service("New-NetFirewallRule")
        self.rules[name] = []

    @as_cmdlet("Set-NetFirewallRule")
    def set_net_firewall_rule(self, name: str, remote: list[str]) -> None:
        """Set the networks that a rule admits. Without networks it is disabled."""
        self._check_service("Set-NetFirewallRule")
        self.rules[name] = list(remote)

    @as_cmdlet("Remove-NetFirewallRule", name="InputObject[].DeviceID")
    def remove_net_firewall_rule(self, name: str) -> None:
        self._check_service("Remove-NetFirewallRule")
        del self.rules[name]

    def _check_service(self, cmdlet: str) -> None:
        if self._should_fail(cmdlet):
            raise self.host.windows_error("firewall-stopped", cmdlet)

    def _should_fail(self, name: str) -> bool:
        is_due = name in self._due_failures
        if is_due:
            self._due_failures.remove(name)
        return is_due

    @as_cmdlet("Set-NetFirewallHyperVVMSetting", "Name", inbound="DefaultInboundAction:word")
    def set_net_firewall_hyper_v_vm_setting(self, inbound: str) -> None:
        self.inbound = inbound

    @as_cmdlet(
        "New-NetFirewallHyperVRule",
        "Name DisplayName Direction VMCreatorId Protocol Action",
        port="LocalPorts[]",
        remote="RemoteAddresses",
    )
    def new_net_firewall_hyper_v_rule(self, port: int | str, remote: Sequence[str] = ()) -> None:
        assert ANY_ADDRESS not in remote, "not a documented value of -RemoteAddresses"
        self.vm_rules[int(port)] = list(remote or (ANY_ADDRESS,))

    @as_cmdlet("Remove-NetFirewallHyperVRule", name="InputObject[].DeviceID")
    def remove_net_firewall_hyper_v_rule(self, name: str) -> None:
        del self.vm_rules[int(name.removeprefix(VM_RULE))]


def is_within(address: str, networks: Sequence[str] | None) -> bool:
    """Tell whether one of the networks contains the address. None, or "Any" among them, contains all addresses."""
    if networks is None or ANY_ADDRESS in networks:
        return True
    return any(ip_address(address) in ip_network(each) for each in networks)


def rule_name(port: str) -> str:
    """Return the name of the firewall rule of a forward."""
    return f"winhost-port-{port}"
