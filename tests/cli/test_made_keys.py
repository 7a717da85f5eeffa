"""Keys that the user does not name: winhost makes them, keeps them as references, and uses them."""

import json
import re
import stat
import sys
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from io import StringIO
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from tests.cli.conftest import Line
from tests.cli.test_given_keys import NEW_VM, fleet, new_key
from tests.cli.test_one_plan_to_endpoint import ACCEPT, SAID
from tests.hub.stand_in_hub import StandInHub
from tests.serving.one_plan import workload
from tests.serving.stacks import IMAGE
from winhost.cli.plan.options import default_request
from winhost.cli.plan.stack_parts import show_made_keys
from winhost.connect.own_key import public_key_line
from winhost.engine.keys import api_key, restrict_to_owner, ssh_key, store_pending
from winhost.engine.stack_target import stack_target
from winhost.engine.store import Store
from winhost.lab.hostfile import expand, find
from winhost.lab.running_lab import Lab
from winhost.model.errors import UsageError
from winhost.model.secrets import SecretRef
from winhost.resources.host import HostFacts

KEY = re.compile(r"wh-[A-Za-z0-9_-]{43}")
PREPARED = ("--new-vm", "llm-02", "--cpus", "8", "--memory", "64GiB", "--disk", "200GiB", "--vhdx", "./noble.vhdx")


def without_keys(lab: Lab) -> None:
    """Write a fleet file without an SSH key, with the lab's port."""
    text = re.sub(r"\n      key: .*", "", lab.fleet_file.read_text("utf-8"))
    lab.fleet_file.write_text(text, encoding="utf-8")


def kept(line: Line, host: str, kind: str) -> Path:
    return line.folder / "state/keys" / f"{host}.{kind}"


@pytest.mark.costly
@pytest.mark.parametrize("path", ["wsl2", "dda"])
def test_a_plan_and_its_run_need_no_key_of_anybody(line: Line, lab: Lab, hub: StandInHub, path: str) -> None:
    without_keys(lab)
    host, words = {"wsl2": ("desk-01", ("--path", "wsl2")), "dda": ("gpu-03", PREPARED)}[path]
    (line.folder / "noble.vhdx").write_bytes(b"as good as a VHDX to a simulated host")
    serves = ("--workload", workload(line.folder), "--hub", hub.url, "--engine-image", IMAGE.pinned)
    said = line("plan", host, *words, *serves, "-o", "plan.json")
    assert said.code == 0, said.err
    api, ssh = kept(line, host, "api-key"), kept(line, host, "ssh")
    assert [stat.S_IMODE(file.stat().st_mode) for file in (api, ssh, api.parent)] == [0o600, 0o600, 0o700]
    key = api.read_text("utf-8")
    assert KEY.fullmatch(key)
    assert f"To see it:\n  cat {api}\n" in said.err
    done = line("apply", "plan.json", *ACCEPT)
    assert done.code == 0, done.err
    assert SAID in done.err.splitlines()[-1]
    assert line("serve", "test", host, "--api-key", f"file:{api}").code == line("serve", "test", host).code == 0
    told = [said.out, said.err, done.out, done.err, Path("plan.json").read_text("utf-8")]
    told += [file.read_text("utf-8") for file in (line.folder / "state").rglob("*.json*")]
    told += [file.read_text("utf-8") for file in (line.folder / "state").rglob("*.log")]
    assert not [text for text in told if key in text or "PRIVATE KEY" in text]
    again = line("plan", host, *words, *serves, "-o", "plan.json", "--force")
    assert (again.code, api.read_text("utf-8")) == (0, key), again.err


def test_each_of_several_hosts_has_keys_of_its_own(line: Line, hub: StandInHub) -> None:
    serves = ("--workload", workload(line.folder), "--hub", hub.url, "--engine-image", IMAGE.pinned)
    hosts = [line.facts(name) for name in ("win11-pro-1gpu", "win11-pro-2xl20-wddm")]
    said = line("plan", *hosts, "--path", "wsl2", *serves, "-o", "plans/")
    assert said.code == 0, said.err
    for host, other in (("desk-01", "ai-02"), ("ai-02", "desk-01")):
        plan = Path(f"plans/{host}.json").read_text("utf-8")
        keys = [kept(line, each, "api-key").read_text("utf-8") for each in (host, other)]
        assert [sha256(key.encode()).hexdigest() in plan for key in keys] == [True, False]
        lines = [ssh_key(each, None).line for each in (host, other)]
        assert [public in plan for public in lines] == [True, False]


def test_an_endpoint_of_the_local_network_is_open_to_the_networks_of_its_windows(line: Line, hub: StandInHub) -> None:
    serves = ("--workload", workload(line.folder, "lan"), "--hub", hub.url, "--engine-image", IMAGE.pinned)
    words = ("plan", line.facts("win11-pro-1gpu"), "--path", "wsl2", *serves, "-o", "plan.json", "--json", "--force")
    assert "--plain-http" in line(*words).json["results"][0]["error"]["what"], "TLS is never left out by itself"
    said = line(*words, "--plain-http")
    assert said.code == 0, said.err
    plan = said.result["plan"]
    assert plan["request"]["playbook"]["settings"]["endpoint"]["allow"] == ["192.168.1.0/24"]
    assert any("open to 192.168.1.0/24, the host's own networks" in note for note in plan["notes"])
    named = line(*words, "--plain-http", "--allow", "10.20.0.0/16").result["plan"]
    assert named["request"]["playbook"]["settings"]["endpoint"]["allow"] == ["10.20.0.0/16"]
    assert not any("own networks" in note for note in named["notes"])


def test_nothing_is_served_where_nobody_is_let_in() -> None:
    """A caller other than the command line has to pass the key."""
    facts = HostFacts(expand(find("win11-pro-1gpu"))[0])
    with pytest.raises(UsageError, match="gives no SSH access"):
        stack_target(facts, default_request("wsl2"), None)
    key = f"ssh-ed25519 {b64encode(bytes([0, 0, 0, 11]) + b'ssh-ed25519' + bytes([0, 0, 0, 32]) + bytes(32)).decode()}"
    playbook = default_request("wsl2").playbook
    given = default_request("wsl2").with_playbook(playbook.with_settings({**playbook.settings, "access": {"key": key}}))
    assert stack_target(facts, given, None).runtime == "docker"


@pytest.mark.parametrize(
    ("facts", "words", "setting"),
    [
        ("win11-pro-1gpu", ("--path", "wsl2", "--set", "access.port=2200"), None),  # nothing is served
        ("server2025-role-installed", (*NEW_VM, "--vhdx", "./x.vhdx"), None),  # nobody knows what is on it
        ("server2025-role-installed", (*NEW_VM, "--vhdx", "./x.vhdx", "--user", "admin"), "new_vm"),
    ],
)
def test_a_key_for_ssh_is_made_where_the_plan_lets_somebody_in(
    line: Line, facts: str, words: tuple[object, ...], setting: str | None
) -> None:
    (line.folder / "x.vhdx").write_bytes(b"vhdxfile" + bytes(2048))
    host = line.facts(facts)
    said = line("plan", host, *words, "-o", "plan.json")
    assert said.code == 0, said.err
    made = [*(line.folder / "state").rglob("*.ssh")]
    assert len(made) == (setting is not None)
    if setting:
        plan = json.loads(Path("plan.json").read_text("utf-8"))
        key = plan["request"]["playbook"]["settings"]["new_vm"]["guest"]["key"]
        assert key == f"{public_key_line('x', SecretRef('file', str(made[0])), None)} winhost"


def test_the_public_half_of_the_key_in_fleet_yaml_is_given(line: Line) -> None:
    public = new_key("mine")
    fleet(gpu_03=f"file:{Path('mine').absolute()}")
    (line.folder / "x.vhdx").write_bytes(b"vhdxfile" + bytes(2048))
    host = line.facts("server2025-role-installed")
    said = line("plan", host, *NEW_VM, "--vhdx", "./x.vhdx", "--user", "admin", "-o", "plan.json")
    assert said.code == 0, said.err
    assert public in Path("plan.json").read_text("utf-8")
    assert not (line.folder / "state/keys").exists()


def test_of_a_key_that_shows_no_public_half_it_is_said_how_to_have_it(line: Line) -> None:
    private = Ed25519PrivateKey.generate()
    hidden = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"open"))
    Path("mine").write_bytes(hidden)
    Path("mine").chmod(0o600)
    fleet(gpu_03=f"file:{Path('mine').absolute()}")
    (line.folder / "x.vhdx").write_bytes(b"vhdxfile" + bytes(2048))
    said = line("plan", line.facts("server2025-role-installed"), *NEW_VM, "--vhdx", "./x.vhdx", "--user", "admin")
    assert (said.code, "ssh-keygen -y -f KEY > KEY.pub" in said.err) == (2, True)


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("shape", "shown"), [("table", True), ("json", False)])
def test_a_new_key_is_shown_once_and_on_a_terminal_alone(
    line: Line, shape: str, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = api_key("desk-01")
    assert made.created
    key = made.created.reveal()
    for terminal, each, seen in (
        (Terminal(), made, shown),
        (StringIO(), made, False),
        (Terminal(), api_key("desk-01"), False),
    ):
        monkeypatch.setattr("sys.stderr", terminal)
        show_made_keys({"desk-01": each}, shape)
        assert (key in terminal.getvalue().replace("\n", "")) is seen
        assert f"file:{kept(line, 'desk-01', 'api-key')}" in re.sub(r"\s+", " ", terminal.getvalue())


class Keyring(ModuleType):
    """A keyring that works, or one that stores nothing."""

    def __init__(self, works: bool) -> None:
        super().__init__("keyring")
        self.kept: dict[tuple[str, str], str] = {}
        self.works = works

    def set_password(self, service: str, user: str, value: str) -> None:
        if self.works:
            self.kept[service, user] = value

    def get_password(self, service: str, user: str) -> str | None:
        return self.kept.get((service, user))


@pytest.mark.parametrize("works", [True, False])
def test_a_keyring_that_works_has_the_key_and_a_file_the_reference(
    tmp_path: Path, works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = Keyring(works)
    monkeypatch.setitem(sys.modules, "keyring", ring)
    monkeypatch.setitem(sys.modules, "keyring.errors", SimpleNamespace(KeyringError=RuntimeError))
    monkeypatch.delenv("WINHOST_STATE", raising=False)
    store = Store(tmp_path / "state")
    first, second = api_key("desk-01", store), api_key("desk-01", store)
    assert first.created
    assert (second.created, second.key) == (None, first.key)
    assert first.key.resolve().reveal() == first.created.reveal()
    assert first.key.scheme == ("keyring" if works else "file")
    files = [file for file in (tmp_path / "state/keys").iterdir() if first.created.reveal() in file.read_text("utf-8")]
    assert len(files) == (0 if works else 1)
    monkeypatch.setenv("WINHOST_STATE", str(tmp_path / "other"))
    assert api_key("desk-01").key.scheme == "file", "a state of its own has its keys"


def test_two_plans_at_once_make_one_key(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    with ThreadPoolExecutor(8) as pool:
        lines = {each.line for each in pool.map(lambda _: ssh_key("desk-01", None, store), range(16))}
        keys = {each.key.resolve().reveal() for each in pool.map(lambda _: api_key("desk-01", store), range(16))}
    assert (len(lines), len(keys)) == (1, 1)


def test_on_windows_the_folder_is_closed_to_other_accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test checks only how icacls is called; it has not run on Windows."""
    asked: list[list[str]] = []
    codes = iter([0, 5])

    def run(words: list[str], **_: object) -> SimpleNamespace:
        asked.append(words)
        return SimpleNamespace(returncode=next(codes))

    monkeypatch.setattr("winhost.engine.keys.subprocess.run", run)
    monkeypatch.setenv("USERDOMAIN", "DESK")
    monkeypatch.setenv("USERNAME", "alice")
    restrict_to_owner(tmp_path)
    assert asked[0][1:] == [
        str(tmp_path), "/inheritance:r", "/grant:r", "DESK\\alice:(OI)(CI)F", "*S-1-5-18:(OI)(CI)F",
    ]  # fmt: skip
    with pytest.raises(UsageError, match="cannot be closed to other accounts"):
        restrict_to_owner(tmp_path)


def test_an_endpoint_whose_key_winhost_has_not_is_tested_with_one_that_is_named(line: Line, lab: Lab) -> None:
    said = line("serve", "test", "desk-01")
    assert (said.code, "name yours, as --api-key env:API_KEY" in " ".join(said.err.split())) == (2, True)
    assert not (line.folder / "state/keys").exists(), "a look-up makes nothing"
    api_key("desk-01")
    assert "no key" not in line("serve", "test", "desk-01").err


def test_a_plan_with_the_key_of_another_computer_is_refused_before_anything_is_changed(
    line: Line, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_keys(lab)
    elsewhere = ssh_key("desk-01", None, Store(line.folder / "elsewhere")).line
    words = ("plan", "desk-01", "--path", "wsl2", "--set", f"access.key={elsewhere}", "-o", "plan.json")
    assert line(*words).code == 0
    said = line("apply", "plan.json", *ACCEPT, "--json")
    assert (said.code, said.result["error"]["kind"]) == (2, "NoLinuxKey")
    ssh_key("desk-01", None)
    said = line("apply", "plan.json", *ACCEPT, "--json")
    assert (said.code, said.result["error"]["kind"]) == (2, "OtherKey")
    assert line("runs", "--json").results == []


def test_pending_keys_are_kept_where_they_are_agreed_to_and_never_replace_others(tmp_path: Path) -> None:
    store, pending = Store(tmp_path / "state"), tmp_path / "pending"
    pending.mkdir(mode=0o700)
    first, again = (ssh_key("desk-01", None, store, pending) for _ in range(2))
    key = api_key("desk-01", store, pending)
    assert (first.line, key.created is not None) == (again.line, True)
    assert [*(tmp_path / "state/keys").glob("desk-01.*")] == []
    value = key.key.resolve().reveal()
    kept = store_pending("desk-01", pending, store)
    assert kept
    assert (kept, value) == (api_key("desk-01", store).key, kept.resolve().reveal())
    assert ssh_key("desk-01", None, store).line == first.line
    assert [*pending.iterdir()] == []
    assert store_pending("desk-01", pending, store) is None
    for make in (ssh_key, api_key):
        host = make.__name__.replace("_", "-")
        words = (None,) if make is ssh_key else ()
        make(host, *words, store, pending)  # type: ignore[operator]
        make(host, *words, store)  # type: ignore[operator]
        with pytest.raises(UsageError, match="another plan for"):
            store_pending(host, pending, store)
        for each in pending.iterdir():
            each.unlink()
