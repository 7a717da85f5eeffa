# key {port: text}   state {allowed: [text] | null, by: ufw | nftables | null, others: [text]}
from __future__ import annotations

import ipaddress

from winhost.agent.linux_head import *

if TYPE_CHECKING:
    Ports = dict[str, list[str]]

NFT_FILE = "/etc/nftables.d/90-winhost-ports.nft"
NFT_SERVICE = "winhost-firewall.service"
# The unit is reloaded together with nftables.service, which loads the rules of others and may flush ours.
NFT_UNIT = """\
# Written by winhost.
[Unit]
Description=Ports that winhost limits to some networks
DefaultDependencies=no
Conflicts=shutdown.target
Wants=network-pre.target
Before=network-pre.target shutdown.target
After=nftables.service
PartOf=nftables.service
ReloadPropagatedFrom=nftables.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={nft} -f {file}
ExecReload={nft} -f {file}

[Install]
WantedBy=sysinit.target nftables.service
"""
# The hook precedes the forwarding to containers, so that published ports are limited, too. Only packets that open a
# connection are dropped, so that answers to outgoing connections are not.
NFT_TABLE = """\
# Written by winhost: which networks reach a port of this machine.
table inet winhost
delete table inet winhost
table inet winhost {{
    chain ports {{
        type filter hook prerouting priority -150; policy accept;
        iif "lo" accept
{}    }}
}}
"""
NFT_DROPS = "        fib daddr type local tcp dport {} tcp flags & (syn | ack) == syn {} drop\n"
UFW_CONF = "/etc/ufw/ufw.conf"
UFW_RULE = re.compile(
    r"ufw (allow|deny) (?:from (\S+) )?(?:to any port ([0-9]+) proto tcp|([0-9]+)/tcp) comment 'winhost'"
)


@reads("FirewallPort", port=lambda port: check_port(port))
def firewall_ports(key: Key | None) -> Found:
    by, ports = ("ufw", ufw_ports()) if is_ufw_enabled() else ("nftables", nft_ports())
    for port in [key["port"]] if key else sorted(ports, key=int):
        allowed = ports.get(port)
        state = {"allowed": allowed, "by": None if allowed is None else by}
        yield {"port": port}, {**state, "others": [] if allowed is None else once("droppers", dropping_chains)}


def check_port(port: str) -> None:
    if int(check_text(r"[1-9][0-9]{0,4}", port, "a TCP port")) > 65535:
        raise bad_request(f"{port} is not a TCP port.")


def sort_networks(networks: list[Any]) -> list[str]:
    """Sort networks, IPv4 first, and merge those that contain or adjoin one another."""
    ipv4 = [ipaddress.IPv4Network(each) for each in networks if ":" not in str(each)]
    ipv6 = [ipaddress.IPv6Network(each) for each in networks if ":" in str(each)]
    return [str(each) for each in (*ipaddress.collapse_addresses(ipv4), *ipaddress.collapse_addresses(ipv6))]


def check_networks(given: Any) -> list[str]:
    try:
        if isinstance(given, list) and sort_networks(given) == given:
            return given
    except ValueError:
        pass
    raise bad_request(f"{given!r} is not a list of networks, those of IPv4 first, each in order and in no other.")


@changes("FirewallPort", "allowed", cuts=lambda key: True)
def change_firewall_port(key: Key, desired: State, how: State) -> None:
    port, allowed = key["port"], desired["allowed"]
    if allowed is not None:
        check_networks(allowed)
        refuse_ssh_port(port)
        if run("systemctl", "is-active", "--quiet", "firewalld.service").code == 0:
            message = "firewalld rules this machine; winhost has no rules there. Use firewall-cmd for this port."
            raise AgentFault("Winhost.OtherFirewall", "ResourceExists", message)
    if is_ufw_enabled():
        change_ufw(port, allowed)
    elif allowed is not None or port in {**nft_file_ports(), **nft_live_ports()}:
        change_nft(port, allowed)


def refuse_ssh_port(port: str) -> None:
    told = run_checked("sshd", "-T").splitlines() if find_program("sshd") else []
    ports = {
        line.rpartition(" ")[2].rpartition(":")[2] for line in told if line.startswith(("port ", "listenaddress "))
    }
    sockets = run("systemctl", "show", "--property=Listen", "--value", "--", "ssh.socket").output
    if port in ports | set(re.findall(r":([0-9]+) \(Stream\)", sockets)):
        message = f"sshd listens on port {port}, which winhost never limits: ListenAddress of sshd does."
        raise AgentFault("Winhost.PortOfSsh", "InvalidOperation", message, "sshd")


# ---- ufw


def is_ufw_enabled() -> bool:
    """Tell whether ufw is installed and enabled."""
    if find_program("ufw") is None or file_status(UFW_CONF) is None:
        return False
    text = read_file(UFW_CONF).decode("utf-8", "replace")
    return re.search(r"^\s*ENABLED\s*=\s*[\"']?yes", text, re.MULTILINE | re.IGNORECASE) is not None


def ufw_lines() -> list[str]:
    return [line for line in run_checked("ufw", "show", "added").splitlines() if line.startswith("ufw ")]


def ufw_ports() -> Ports:
    """Return the ports that winhost's rules in ufw limit, with the networks that they allow."""
    allowed: dict[str, list[str]] = {}
    denied = set()
    for found in filter(None, map(UFW_RULE.fullmatch, ufw_lines())):
        port = found[3] or found[4]
        if found[1] == "allow":
            allowed.setdefault(port, []).append(found[2])
        else:
            denied.add(port)
    return {port: sort_networks(allowed.get(port, [])) for port in denied}


def change_ufw(port: str, allowed: list[str] | None) -> None:
    mine = [found for found in map(UFW_RULE.fullmatch, ufw_lines()) if found and port in (found[3], found[4])]
    if allowed is not None:
        refuse_foreign_rules(port)
    for found in mine:
        source = ("from", found[2]) if found[2] else ()
        run_checked("ufw", "--force", "delete", found[1], "proto", "tcp", *source, "to", "any", "port", port)
    if allowed is None:
        return
    # Each rule is inserted before all others.
    to = ("to", "any", "port", port, "comment", "winhost")
    run_checked("ufw", "prepend", "deny", "proto", "tcp", *to)
    for network in reversed(allowed):
        run_checked("ufw", "prepend", "allow", "proto", "tcp", "from", network, *to)


def refuse_foreign_rules(port: str) -> None:
    foreign = [
        line for line in ufw_lines() if not UFW_RULE.fullmatch(line) and re.search(rf"[ ,]{port}(?:/|,| |$)", line)
    ]
    if foreign:
        message = "ufw has a rule of somebody else for it, which winhost would override: {}.".format("; ".join(foreign))
        raise AgentFault("Winhost.RuleOfOthers", "ResourceExists", message, "ufw")


# ---- nftables


def nft_ports() -> Ports:
    """Return the ports whose rule is effective now and will be the same after a restart."""
    live = nft_live_ports()
    return {port: allowed for port, allowed in nft_file_ports().items() if live.get(port) == allowed}


def nft_file_ports() -> Ports:
    said = re.findall(r"^# port ([0-9]+): (\[.*\])$", read_text(NFT_FILE) or "", re.MULTILINE)
    return {port: json.loads(allowed) for port, allowed in said}


def nft_live_ports() -> Ports:
    """Return the ports in winhost's table as it is loaded in the kernel."""
    if find_program("nft") is None:
        return {}
    done = run("nft", "--json", "list", "table", "inet", "winhost")
    found: dict[str, list[Any]] = {}
    for each in json.loads(done.output)["nftables"] if done.code == 0 else ():
        matches = [part["match"] for part in each.get("rule", {}).get("expr", ()) if "match" in part]
        port = next((str(m["right"]) for m in matches if field_of(m) == "dport"), None)
        if port is not None:
            networks = [network for m in matches if field_of(m) == "saddr" for network in networks_of(m["right"])]
            found.setdefault(port, []).extend(networks)
    return {port: sort_networks(networks) for port, networks in found.items()}


def field_of(match: State) -> str | None:
    left = match["left"]
    field: str | None = left.get("payload", {}).get("field") if isinstance(left, dict) else None
    return field


def networks_of(right: Any) -> Iterator[Any]:
    """Yield the networks of an nft expression: an address, a network, a range, or a set of these."""
    if isinstance(right, str):
        yield ipaddress.ip_network(right)
    elif "prefix" in right:
        yield ipaddress.ip_network("{addr}/{len}".format(**right["prefix"]))
    elif "range" in right:
        first, last = (ipaddress.ip_address(each) for each in right["range"])
        yield from ipaddress.summarize_address_range(first, last)
    else:
        for each in right["set"]:
            yield from networks_of(each)


def change_nft(port: str, allowed: list[str] | None) -> None:
    ports = {name: networks for name, networks in nft_file_ports().items() if name != port}
    if allowed is not None:
        ports[port] = allowed
    if not ports:
        run("systemctl", "disable", "--now", "--quiet", NFT_SERVICE)
        run("nft", "delete", "table", "inet", "winhost")
        for path in (NFT_FILE, f"/etc/systemd/system/{NFT_SERVICE}"):
            remove(path)
        run_checked("systemctl", "daemon-reload")
        return
    text = nft_text(ports)
    validate(NFT_FILE, text)
    put(NFT_FILE, text)
    put(f"/etc/systemd/system/{NFT_SERVICE}", NFT_UNIT.format(nft=find_program("nft"), file=NFT_FILE))
    run_checked("systemctl", "daemon-reload")
    run_checked("systemctl", "enable", "--quiet", NFT_SERVICE)
    run_checked("systemctl", "restart", NFT_SERVICE)


def nft_text(ports: Ports) -> str:
    drops, notes = "", ""
    for port, allowed in sorted(ports.items(), key=lambda each: int(each[0])):
        for family, protocol in (("ip", "ipv4"), ("ip6", "ipv6")):
            networks = ", ".join(each for each in allowed if (":" in each) == (family == "ip6"))
            others = f"{family} saddr != {{ {networks} }}" if networks else f"meta nfproto {protocol}"
            drops += NFT_DROPS.format(port, others)
        notes += f"# port {port}: {json.dumps(allowed)}\n"
    return NFT_TABLE.format(drops) + notes


def dropping_chains() -> list[str]:
    """Return others' chains with the policy drop. Packets that one of them drops cannot be accepted elsewhere."""
    if find_program("nft") is None:
        return []
    chains = [each.get("chain", {}) for each in json.loads(run_checked("nft", "--json", "list", "chains"))["nftables"]]
    dropping = [each for each in chains if each.get("hook") in ("input", "prerouting") and each["policy"] == "drop"]
    return sorted("{family} {table} {name}".format(**each) for each in dropping)
