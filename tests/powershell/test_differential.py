"""The scripts that a host runs answer what the lab says: in a real PowerShell, against the same simulated host."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.powershell.cases import CASES, WORLDS, fits, read, shows
from tests.powershell.twins import Scripts, comparable, contract, hosts, machine, of, scripts, verdict
from tests.rows import each_row
from winhost.core.answers import Record, Unavailable
from winhost.lab.physics.local_accounts import script_path
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.wsl_distros import distro_folder, new_record
from winhost.resources.registry import WINDOWS, WINDOWS_STATES
from winhost.resources.windows.windows_scripts import job_script

A_DATE = "2024-01-31T12:00:00Z"  # of which PowerShell 7 makes one while it reads JSON
HOSTILE = (
    "it's", "‘’‚‛", '"$(Stop-Computer)"', "`n`0", "a\nb\r\nc", "\u0000", "\u202egnorw\u202c", "x" * 255, "gpu[1]*?",
    "CON", "..\\..\\x", "\\\\server\\share", "; & | {0} %PATH% $env:PATH", A_DATE, "=1+1", "01", "true",
    "null", "", " ", "\U0001f4a9", "<#", "@'\n'@", "--%", "\ufeffbom",
)  # fmt: skip

pytestmark = pytest.mark.timeout(3600)  # hundreds of rows in one test


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripts]:
    with scripts() as running:
        yield running


def same(
    engine: Scripts,
    one: Machine,
    other: Machine,
    *calls: dict[str, Any],
    of_lab: Sequence[dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """The answers, which are the same from both. of_lab: the calls that the lab is asked, if not all; of these, not
    those that end with the script in a way that the lab does not show, as where one before was denied.
    """
    theirs = comparable(calls, engine.answers(other, *calls))
    told = list(zip(calls, theirs, strict=True))
    if of_lab is not None:
        told = [(call, answer) for call, answer in told if call in of_lab and shows(verdict(answer), call)]
    asked = [call for call, _ in told]
    ours = comparable(asked, contract(one, *asked)) if asked else []
    assert [answer for _, answer in told] == ours
    return theirs


# ---- every resource, on every host

ASKED_ONE_BY_ONE = (
    "assignment-stale", "gpu-partitioned", "not-administrator", "server2022-cluster", "server2025-3gpu",
    "server2025-role-installed", "win11-pro-1gpu",
)  # fmt: skip


def everything(host: Machine) -> list[dict[str, Any]]:
    return [{"resource": state.resource_type.name, "verb": "get"} for state in WINDOWS_STATES]


def one_by_one(host: Machine) -> Iterator[dict[str, Any]]:
    """Each instance by its key, however it is written; then one that is not there, and half a key."""
    for name, resource in WINDOWS.items():
        for record in host.instances(name)[:3]:
            yield {"resource": name, "verb": "get", "key": dict(record.key)}
            yield {"resource": name, "verb": "get", "key": {part: text.swapcase() for part, text in record.key.items()}}
            yield {"resource": name, "verb": "get", "key": dict(list(record.key.items())[1:])}
        yield {"resource": name, "verb": "get", "key": dict.fromkeys(resource.key, "not there")}


@each_row("name", hosts)
def test_every_resource_reads_the_same_on_every_host(engine: Scripts, name: str) -> None:
    host = machine(name)
    same(engine, host, host, *everything(host))


@pytest.mark.parametrize("name", ASKED_ONE_BY_ONE)
def test_every_instance_reads_the_same_by_its_key(engine: Scripts, name: str) -> None:
    host = machine(name)
    same(engine, host, host, *one_by_one(host))


@pytest.mark.parametrize("world", ["in German", "for a guest"])
@pytest.mark.parametrize("name", ["server2025-3gpu", "server2025-role-installed", "win11-pro-1gpu"])
def test_every_resource_reads_the_same_in_other_words(engine: Scripts, name: str, world: str) -> None:
    host = machine(name, **WORLDS[world])
    same(engine, host, host, *everything(host))


@each_row("policy", [None, "restricted", "all-signed", "remote-signed", "unrestricted"])
def test_the_policy_for_scripts_reads_the_same(engine: Scripts, policy: str | None) -> None:
    facts, section = hosts()["win11-pro-1gpu"]
    found: Any = facts.resources["Session"]
    told = tuple(Record({**record.state, "execution_policy": policy}, record.key) for record in found)
    host = of(replace(facts, resources={**facts.resources, "Session": told}), section)
    (answer,) = same(engine, host, host, {"resource": "Session", "verb": "get"})
    assert answer["instances"][0]["state"]["execution_policy"] == policy


def one_of(name: str) -> Record | None:
    """An instance that is there, if there is one."""
    return next(iter(machine("server2025-role-installed").instances(name)), None)


def words() -> Iterator[tuple[str, str]]:
    for name, resource in WINDOWS.items():
        found = one_of(name)
        yield from ((name, each) for each in resource.sets if found and isinstance(found.state[each], str))


FOLLOW = {"ExternalSwitch", "HyperVFirewall"}  # from VmSwitch; from the build


def counted() -> Iterator[tuple[str, int]]:
    # Of resources with the same key the first: what the others tell of is a part of it.
    for name in {resource.key: name for name, resource in reversed(list(WINDOWS.items())) if resource.key}.values():
        # Where no host has one there is none to make several of.
        if name not in FOLLOW and any(machine(host).instances(name) for host in hosts()):
            yield from ((name, count) for count in (0, 1, 2) if (name, count) != ("Processor", 0))  # who would answer?


def with_so_many(name: str, count: int) -> Machine:
    """A host with so many of what this resource tells of, in all resources that tell of it."""
    host = max(hosts(), key=lambda each: len(machine(each).instances(name)))
    facts, section = hosts()[host]
    found: Any = facts.resources[name]
    # Where no host has several there is another of the same, under a key of its own.
    more = tuple(Record(r.state, {part: f"{text[:-1]}7" for part, text in r.key.items()}) for r in found)
    keys = [record.key for record in (*found, *more)][:count]
    resources: dict[str, Any] = {}
    for other, answer in facts.resources.items():
        records = (*answer, *more) if other == name else answer
        alike = WINDOWS[other].key == WINDOWS[name].key and isinstance(answer, tuple)
        resources[other] = tuple(r for r in records if r.key in keys) if alike else answer
    return of(replace(facts, resources=resources), section)


@each_row(("name", "count"), counted)
def test_none_one_and_several_read_the_same(engine: Scripts, name: str, count: int) -> None:
    host = with_so_many(name, count)
    assert len(host.instances(name)) == count
    same(engine, host, host, *everything(host))


@each_row("name", [name for name, resource in WINDOWS.items() if resource.key])
def test_a_hostile_key_is_one_that_is_not_there(engine: Scripts, name: str) -> None:
    asked = [machine(host) for host in ("server2025-role-installed", "win11-wsl-served")]
    host = next(each for each in asked if not isinstance(each.answer(name), Unavailable))
    keys = [dict.fromkeys(WINDOWS[name].key, text) for text in HOSTILE]
    gets = [{"resource": name, "verb": "get", "key": key} for key in keys]
    by_script = name == "YieldWatcher"  # it refuses what is no account's name, which the lab does not look at
    answers = same(engine, host, host, *gets, of_lab=[] if by_script else None)
    absent = WINDOWS[name].absent
    assert by_script or all(answer["state"] == (absent and dict(absent)) for answer in answers)
    before = host.comparable_state()
    for key in keys if WINDOWS[name].sets else ():
        call = {"resource": name, "verb": "set", "key": key, "desired": dict.fromkeys(WINDOWS[name].sets, "x")}
        # Of what can be made: no name for one, or, where it is a plain word, nothing that others rest on.
        refused = ["Winhost.NotFound"] if absent is None else ["Winhost.BadRequest", "unavailable"]
        of_lab = [] if by_script or fits(call) else None
        assert all(verdict(answer) in refused for answer in same(engine, host, host, call, of_lab=of_lab))
    assert host.comparable_state() == before


@each_row(("name", "desired"), words)
def test_a_hostile_word_is_refused_by_name(engine: Scripts, name: str, desired: str) -> None:
    host = machine("server2025-role-installed")
    before = host.comparable_state()
    key = dict(host.instances(name)[0].key)
    for text in set(HOSTILE) - {A_DATE}:
        call = {"resource": name, "verb": "set", "key": key, "desired": {desired: text}}
        assert [verdict(answer) for answer in same(engine, host, host, call)] == ["Winhost.BadRequest"]
    assert host.comparable_state() == before


def test_names_come_back_as_they_are(engine: Scripts) -> None:
    facts, section = hosts()["server2025-role-installed"]
    vm = facts.resources["Vm"][0]  # type: ignore[index]
    named = tuple(
        Record({**vm.state, "name": name}, {"vm": f"00000000-0000-4000-8000-{number:012x}"})
        for number, name in enumerate(HOSTILE)
    )
    host = of(replace(facts, resources={**facts.resources, "Vm": named}), section)
    (answer,) = same(engine, host, host, {"resource": "Vm", "verb": "get"})
    assert [each["state"]["name"] for each in answer["instances"]] == list(HOSTILE)


ADAPTER: dict[str, Any] = {
    "mac": None,
    "status": "up",
    "speed": None,
    "vlan": None,
    "gateway": None,
    "dns": [],
    "profile": None,
}
ADAPTER |= {"switch": None, "management": False, "addresses": [], "description": "An adapter"}


@pytest.mark.parametrize("kind", ["ethernet", "wifi", "team", "virtual", "vpn", "other"])
def test_adapters_read_the_same_whatever_they_are_and_are_called(engine: Scripts, kind: str) -> None:
    facts, section = hosts()["win11-pro-1gpu"]
    adapters = tuple(
        Record(
            {**ADAPTER, "kind": kind, "name": name, "status": status, "filters": [name, "Npcap"], "profile": profile},
            {"adapter": f"00000000-0000-4000-8000-{number:012x}"},
        )
        for number, (name, status, profile) in enumerate(
            zip(
                HOSTILE,
                ["up", "disconnected", "disabled", "down"] * 6,
                [None, "public", "private", "domain"] * 6,
                strict=False,
            )
        )
    )
    host = of(replace(facts, resources={**facts.resources, "NetworkAdapter": adapters}), section)
    (answer,) = same(engine, host, host, {"resource": "NetworkAdapter", "verb": "get"})
    assert [each["state"]["name"] for each in answer["instances"]] == list(HOSTILE)[: len(adapters)]
    assert {each["state"]["kind"] for each in answer["instances"]} == {kind}


@each_row(
    ("description", "service", "kind"),
    [
        ("Cisco AnyConnect Virtual Miniport Adapter for Windows x64", None, "vpn"),
        ("PANGP Virtual Ethernet Adapter Secure #2", None, "vpn"),
        ("Fortinet SSL VPN Virtual Ethernet Adapter", None, "vpn"),
        ("Fortinet Virtual Ethernet Adapter (NDIS 6.30)", None, "vpn"),
        ("Check Point Virtual Network Adapter For Endpoint VPN Client", None, "vpn"),
        *(
            ("Virtual Ethernet Adapter", service, "vpn")
            for service in (
                "vpnva",
                "PanGpd",
                "ftsvnic",
                "ft_vnic",
                "pppop",
                "jnprva",
                "dsNcAdpt",
                "ctxva",
                "urvpndrv",
                "tapprotonvpn",
                "tap0901",
                "ovpn-dco",
                "wintun",
                "WireGuard",
            )
        ),
        ("Realtek USB GbE Family Controller", "rtux64w10", "ethernet"),
        ("Intel(R) Ethernet Connection (7) I219-V", "e1dexpress", "ethernet"),
        ("Realtek PCIe GBE Family Controller", "rt640x64", "ethernet"),
    ],
)
def test_vpn_clients_that_call_themselves_ethernet_are_known(
    engine: Scripts, description: str, service: str | None, kind: str
) -> None:
    """By component, driver, product or service, and as such by the simulated host, whose adapter says Ethernet."""
    facts, section = hosts()["win11-pro-1gpu"]
    state = {
        **ADAPTER,
        "kind": kind,
        "name": "Ethernet 5",
        "filters": [],
        "description": description,
        "service": service,
    }
    adapter = Record(state, {"adapter": "00000000-0000-4000-8000-000000000001"})
    host = of(replace(facts, resources={**facts.resources, "NetworkAdapter": (adapter,)}), section)
    (answer,) = same(engine, host, host, {"resource": "NetworkAdapter", "verb": "get"})
    assert [(each["state"]["kind"], each["state"]["service"]) for each in answer["instances"]] == [(kind, service)]


@pytest.mark.parametrize("value", [True, False])
def test_policies_for_wsl_read_the_same(engine: Scripts, value: bool) -> None:
    facts, section = hosts()["win11-pro-1gpu"]
    state = {**facts.resources["WslPolicy"][0].state}  # type: ignore[index]
    policy = Record({**dict.fromkeys(state, value), "default_networking": 3}, {})
    host = of(replace(facts, resources={**facts.resources, "WslPolicy": (policy,)}), section)
    (answer,) = same(engine, host, host, {"resource": "WslPolicy", "verb": "get"})
    assert answer["instances"][0]["state"] == dict(policy.state)


@pytest.mark.parametrize("script", [b"# of an older winhost\n", job_script().replace("\n", "\r\n").encode(), None])
def test_a_script_for_jobs_reads_the_same_whoever_wrote_it(engine: Scripts, script: bytes | None) -> None:
    hosts_ = one, other = machine("win11-wsl-served"), machine("win11-wsl-served")
    for each in hosts_:
        each.files.remove(script_path("winhost"))
        if script is not None:
            each.files.write(script_path("winhost"), script)
    key = {"account": "winhost"}
    same(engine, one, other, {"resource": "AccountTasks", "verb": "get"}, {"resource": "WslDistro", "verb": "get"})
    same(engine, one, other, {"resource": "AccountTasks", "verb": "set", "key": key, "desired": {"jobs": "ready"}})
    (told,) = same(engine, one, other, {"resource": "AccountTasks", "verb": "get", "key": key})
    assert told["state"]["jobs"] == "ready"
    for each in hosts_:
        written = each.files.read(script_path("winhost"))
        assert written is not None
        assert written.replace(b"\r", b"") == job_script().encode()


FRESH = {"account": "winhost", "distro": "fresh"}
IMAGE = "9b2f7730dc68227dd04a9f3e5eab86ad85caf556b8606ad94f1f29ff5c4fd3f5"
STAGED = f"C:\\ProgramData\\winhost\\files\\{IMAGE}-ubuntu-24.04.4-wsl-amd64.wsl"


@pytest.mark.parametrize("where", ["", "there", "elsewhere"])
def test_an_import_that_was_cut_off_is_begun_anew_unless_somebody_took_its_name(engine: Scripts, where: str) -> None:
    """By the script alone: the simulator's import is not cut off."""
    host, folder = machine("win11-wsl-served"), distro_folder("winhost", "fresh")
    if where:
        to = folder if where == "there" else "D:\\mine"
        host.distros.wsl("winhost", ["--import", "fresh", to, STAGED, "--version", "2"], b"")
    else:
        host.files.write(f"{folder}\\ext4.vhdx", b"half")
    host.distros.write_record("winhost", "fresh", {**new_record(IMAGE), "complete": False})
    desired = {"installed": True, "image": IMAGE}
    (answer,) = engine.answers(host, {"resource": "WslDistro", "verb": "set", "key": FRESH, "desired": desired})
    assert verdict(answer) == ("Winhost.NotOurs" if where == "elsewhere" else "ok")
    assert answer["after"]["image"] == (None if where == "elsewhere" else IMAGE)


# ---- every case


@each_row("world", WORLDS)
@each_row("name", CASES)
def test_a_case_ends_the_same(engine: Scripts, name: str, world: str) -> None:
    case = read(name)
    one, other = case.machine(world), case.machine(world)
    said = [
        [verdict(answer) for answer in same(engine, one, other, *batch, of_lab=asked)]
        for batch, asked in case.settled(one, other)
    ]
    assert other.snapshot() == one.snapshot()
    assert other.comparable_state() == one.comparable_state()
    if world == "as it is":
        # Of several calls that make one step, what the first one says that is not ok.
        steps = said[0] if case.one_batch else [next((w for w in step if w != "ok"), "ok") for step in said]
        assert steps == case.say
