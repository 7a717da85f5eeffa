"""Who may come in to a simulated host: its forwarded ports, its firewall, and that of VMs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ipaddress import ip_address, ip_network

from winhost.core.answers import Json, Record
from winhost.lab.physics.host_protocol import WindowsHost
from winhost.resources.windows.hyperv_firewall import WSL

HYPER_V_FIREWALL = 22621  # the first build that has it
ANY = "Any"  # of a firewall rule: everybody
_PROXIES = "SYSTEM\\CurrentControlSet\\Services\\PortProxy\\v4tov4\\tcp"


class Firewalls:
    """Its methods are cmdlets in snake case, and netsh.exe."""

    def __init__(self, host: WindowsHost) -> None:
        self.host = host
        self.proxies = dict(host.lab.port_proxies)  # listening port to address/port, as the registry has it
        self.rules: dict[str, list[str]] = {}  # by our names: who may come in; nobody where one is off
        self.inbound = "not-configured"
        self.vm_rules: dict[int, list[str]] = {}  # of the firewall of VMs: who may come to a port
        self._fail = list(host.lab.network_fails)
        builds = [record.state["build"] for record in host.instances("OperatingSystem")]
        self.has_hyper_v_firewall = any(isinstance(build, int) and build >= HYPER_V_FIREWALL for build in builds)
        for record in host.instances("PortForward"):
            port = record.key["port"]
            if record.state["target"] is not None:
                self.proxies[port] = f"{record.state['target']}/{record.state['connect_port']}"
            self.rules[rule_name(port)] = list(record.state["allowed"])
        for record in host.instances("HyperVFirewall"):
            self.inbound = record.state["inbound"]
            self.vm_rules = {each: list(record.state["allowed"] or [ANY]) for each in record.state["ports"]}
        host.registry_keys.append(self._proxy_keys)

    def records(self) -> Mapping[str, Callable[[], Iterable[Record]]]:
        """The calls that list the instances."""
        return {"PortForward": self._forwards, "HyperVFirewall": self._firewall}

    def _proxy_keys(self) -> Iterator[tuple[str, Mapping[str, Json]]]:
        yield _PROXIES, {f"0.0.0.0/{port}": to for port, to in self.proxies.items()}

    def _forwards(self) -> Iterator[Record]:
        for name, allowed in self.rules.items():
            port = name.removeprefix(rule_name(""))
            target, _, connect = self.proxies.get(port, "").partition("/")
            state = {"target": target or None, "connect_port": int(connect) if connect else None}
            yield Record({**state, "allowed": list(allowed)}, {"port": port})

    def _firewall(self) -> Iterator[Record]:
        if self.has_hyper_v_firewall:
            state = {"inbound": self.inbound, "ports": list(self.vm_rules), "allowed": self.vm_allowed()}
            yield Record(state, {"creator": WSL})

    def vm_allowed(self) -> list[str] | None:
        """Who may come to any port of VMs that winhost opened; None: everybody."""
        every = [each for remote in self.vm_rules.values() for each in remote]
        return None if ANY in every else list(dict.fromkeys(every)) or None

    def run_netsh(self, words: list[str]) -> tuple[int, str]:
        """netsh interface portproxy set or delete v4tov4: its exit code and what it prints."""
        initial = dict(word.partition("=")[::2] for word in words[2:])
        if not self.host.lab.administrator:
            return 1, "The requested operation requires elevation (Run as administrator)."
        if self._fails(f"netsh.exe {words[0]}"):
            return 1, "The system cannot find the file specified."
        if words[0] == "set":
            self.proxies[initial["listenport"]] = f"{initial['connectaddress']}/{initial['connectport']}"
        elif self.proxies.pop(initial["listenport"], None) is None:
            return 1, "The system cannot find the file specified."
        return 0, ""

    def new_net_firewall_rule(self, name: str) -> None:
        """One that is off."""
        with self._at_the_firewall("New-NetFirewallRule"):
            self.rules[name] = []

    def set_net_firewall_rule(self, name: str, remote: list[str]) -> None:
        """On for them, or off."""
        with self._at_the_firewall("Set-NetFirewallRule"):
            self.rules[name] = list(remote)

    def remove_net_firewall_rule(self, name: str) -> None:
        with self._at_the_firewall("Remove-NetFirewallRule"):
            del self.rules[name]

    @contextmanager
    def _at_the_firewall(self, cmdlet: str) -> Iterator[None]:
        with self.host.changing(cmdlet):
            if self._fails(cmdlet):
                raise self.host.fail("firewall-stopped", cmdlet)
            yield

    def _fails(self, name: str) -> bool:
        found = name in self._fail
        if found:
            self._fail.remove(name)
        return found

    def set_net_firewall_hyper_v_vm_setting(self, inbound: str) -> None:
        with self.host.changing("Set-NetFirewallHyperVVMSetting"):
            self.inbound = inbound

    def new_net_firewall_hyper_v_rule(self, port: int, remote: list[str]) -> None:
        with self.host.changing("New-NetFirewallHyperVRule"):
            self.vm_rules[port] = list(remote)

    def remove_net_firewall_hyper_v_rule(self, port: int) -> None:
        with self.host.changing("Remove-NetFirewallHyperVRule"):
            del self.vm_rules[port]


def within(address: str, networks: Sequence[str] | None) -> bool:
    """Whether it is in one of them; None, and Any among them, is everywhere."""
    if networks is None or ANY in networks:
        return True
    return any(ip_address(address) in ip_network(each) for each in networks)


def rule_name(port: str) -> str:
    """Of the firewall rule that goes with a forward."""
    return f"winhost-port-{port}"
