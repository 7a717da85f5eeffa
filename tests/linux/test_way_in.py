"""Commands that winhost runs in a distro before SSH works, in a real Debian with systemd."""

import base64
import os
import shutil
import subprocess
from contextlib import closing
from ipaddress import ip_address, ip_interface
from pathlib import Path

import pytest

from tests.connect.sshd import keypair
from tests.linux.debian import INSIDE, OUTSIDE, PREFIX
from tests.linux.distro import ACCOUNT, NAME, STAGED
from tests.linux.wsl import Wsl
from tests.processes import PATIENCE_S, wait_for
from winhost.connect.ssh import SshConnector
from winhost.connect.wire_errors import AuthenticationFailed
from winhost.images.seed import GuestAddress
from winhost.lab.linux.linux_machine import SSH_UNIT, SSH_UNIT_FILE, SSHD_FILE, sshd_file
from winhost.model.fleet import LinuxHost
from winhost.model.secrets import SecretRef
from winhost.paths.wsl2 import network_file
from winhost.resources.linux.linux_scripts import session_text
from winhost.resources.windows.windows_scripts import distro_script

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]  # they take turns, and one is fetched

IN_DISTRO = ("-d", NAME, "-u", "root", "--cd", "/", "-e")
THEIRS = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHNvbWVib2R5IGVsc2UgaGFzIGEga2V5IHRvby4u somebody@else"
PORT = 2222


class WayIn:
    """A distro of an account, reached as a job of that account reaches it: through wsl.exe."""

    def __init__(self, wsl: Wsl) -> None:
        self._wsl = wsl
        distro = wsl.images[STAGED]
        self.root, self.key, self.run = distro.root, distro.key, distro.run
        self.read, self.exists, self.enabled = distro.read, distro.exists, distro.enabled

    def restart(self) -> None:
        assert self._wsl.run(ACCOUNT, "--terminate", NAME).returncode == 0

    def put(self, *lines: str) -> None:
        """Write lines as a job does, through a program that only writes them."""
        self._ask(["/usr/bin/tee", "/var/lib/winhost.wanted"], "".join(f"{line}\n" for line in lines))

    def script(self, verb: str, *lines: str) -> list[str]:
        if lines:
            self.put(*lines)
        return self._ask(["/bin/sh", "-s", verb], distro_script()).splitlines()

    def _ask(self, command: list[str], text: str) -> str:
        done = self._do(command, text)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def _do(self, command: list[str], text: str) -> "subprocess.CompletedProcess[bytes]":
        return self._wsl.run(ACCOUNT, *IN_DISTRO, *command, content=text.encode())

    def refused(self, verb: str, *lines: str) -> tuple[int, str]:
        self.put(*lines)
        done = self._do(["/bin/sh", "-s", verb], distro_script())
        return done.returncode, done.stderr.decode().splitlines()[-1]

    def key_leads_in(self, key: Path, host_key: str) -> str:
        """Return the machine id that the agent reads over SSH."""
        mine = SecretRef("file", str(key))
        target = LinuxHost(
            name="distro", address=INSIDE, user="root", host_key=host_key, key=mine, port=PORT, connect_timeout=5
        )
        with closing(SshConnector(target, session_text()).open()) as agent:
            return str((agent.get("LinuxSystem", {}) or {})["id"])


def line(name: str, text: str) -> str:
    return f"{name} :{base64.b64encode(text.encode()).decode()}"


def told(lines: list[str], name: str) -> list[str]:
    return [each.removeprefix(f"{name} ") for each in lines if each.startswith(f"{name} ")]


@pytest.fixture(scope="module")
def distro(wsl: Wsl) -> WayIn:
    assert wsl.run(ACCOUNT, "--import", NAME, "C:\\distros", STAGED, "--version", "2").returncode == 0
    return WayIn(wsl)


@pytest.fixture(scope="module")
def addressed(distro: WayIn) -> WayIn:
    """A distro with an address, which bridged WSL leaves to the distro."""
    static = GuestAddress(ip_interface(f"{INSIDE}/{PREFIX}"), ip_address(OUTSIDE), (ip_address(OUTSIDE),))
    distro.script("conf", line("network", network_file(static)))
    distro.run("systemctl", "start", "systemd-networkd.service")
    wait_for(lambda: INSIDE in distro.run("ip", "address"))
    return distro


@pytest.fixture(scope="module")
def open_(addressed: WayIn) -> WayIn:
    """A distro that can be reached over SSH."""
    (addressed.root / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
    (addressed.root / "root/.ssh/authorized_keys").write_text(f"{THEIRS}\n")
    addressed.script("open", *desired(addressed.key))
    return addressed


def desired(*keys: Path, active: bool = True) -> list[str]:
    lines = [f"key {key.with_suffix('.pub').read_text().strip()}" for key in keys]
    return [f"port {PORT}", f"listen {INSIDE}", *lines, *(["active yes"] if active else [])]


# ---- its grammar


@pytest.mark.parametrize("shell", ["dash -n", "bash --posix -n", "busybox ash -n"])
def test_every_shell_that_may_be_bin_sh_reads_it(shell: str) -> None:
    command = shell.split()
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]} here")
    done = subprocess.run(command, input=distro_script(), capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, "")


def test_shellcheck_finds_nothing() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("there is no shellcheck here")
    quiet = ["--shell=sh", "--exclude=SC2174", "-"]  # of the folders that it makes, those above are there
    done = subprocess.run(
        ["shellcheck", *quiet], input=distro_script(), capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.stdout == ""


# ---- before there is a way in


def test_a_fresh_distro_tells_that_nothing_is_ours(distro: WayIn) -> None:
    assert distro.script("look") == ["end ."]


def test_what_it_cannot_do_is_refused(distro: WayIn) -> None:
    assert distro.refused("paint") == (3, "winhost: paint is nothing that it can do")


def test_wsl_conf_comes_and_goes_back_to_what_the_image_has(distro: WayIn) -> None:
    ours = "[boot]\nsystemd=true\n\n[user]\ndefault=root\n# ü '\"$(reboot)`\n"
    distro.script("conf", line("conf", ours))
    assert distro.read("/etc/wsl.conf") == ours
    assert told(distro.script("look"), "conf") == [line("conf", ours).removeprefix("conf ")]
    distro.script("conf", line("conf", "again"))
    distro.script("conf", "conf -")
    assert distro.read("/etc/wsl.conf") == "[boot]\nsystemd=true\n"
    assert told(distro.script("look"), "conf") == []
    assert not distro.exists("/var/lib/winhost.wanted")


def test_a_resolver_takes_the_place_of_a_link_and_leaves_room_for_it(distro: WayIn) -> None:
    file = distro.root / "etc/resolv.conf"
    file.unlink(missing_ok=True)
    file.symlink_to("/mnt/wsl/resolv.conf")
    distro.script("conf", line("resolver", "nameserver 203.0.113.253\n"))
    assert file.read_text() == "nameserver 203.0.113.253\n"
    assert not file.is_symlink()
    distro.script("conf", "resolver -")
    assert not os.path.lexists(file), "WSL makes its link again where there is no file"


def test_the_static_address_is_there_from_the_next_start_on(addressed: WayIn) -> None:
    assert addressed.enabled("systemd-networkd.service") == "enabled"
    assert f"{INSIDE}/{PREFIX}" in addressed.run("ip", "address", "show", "dev", "eth0")


# ---- the way in


def test_packages_that_cannot_be_had_are_told_as_that_and_nothing_stays(addressed: WayIn) -> None:
    sources = addressed.root / "etc/apt/sources.list"
    there = sources.read_text()
    sources.write_text("deb [trusted=yes] file:/srv/nowhere ./\n")
    code, why = addressed.refused("open", *desired(addressed.key))
    assert (code, why[:3]) == (100, "E: ")
    addressed.script("close")
    assert told(addressed.script("look"), "port") == []
    assert not any(map(addressed.exists, (SSHD_FILE, SSH_UNIT_FILE, "/root/.ssh/authorized_keys")))
    sources.write_text(there)


def test_the_agent_comes_in_by_the_key_and_host_key_that_were_told(open_: WayIn) -> None:
    seen = open_.script("look")
    assert (told(seen, "port"), told(seen, "listen"), told(seen, "active")) == ([str(PORT)], [INSIDE], ["yes"])
    (host_key,) = told(seen, "host")
    assert host_key.startswith("ssh-ed25519 ")
    assert open_.key_leads_in(open_.key, host_key) == "debian"


def test_it_writes_the_very_files_that_the_path_writes(open_: WayIn) -> None:
    assert open_.read(SSHD_FILE) == sshd_file(ip_address(INSIDE), PORT)
    assert open_.read(SSH_UNIT_FILE) == SSH_UNIT


def test_who_comes_from_elsewhere_is_not_let_in_and_the_networks_are_told(open_: WayIn) -> None:
    (host_key,) = told(open_.script("look"), "host")
    near = ["203.0.113.0/24", "2001:db8::/32"]
    open_.script("open", *desired(open_.key), *(f"from {network}" for network in near))
    assert told(open_.script("look"), "from") == near
    assert open_.read(SSHD_FILE) == sshd_file(ip_address(INSIDE), PORT, near)
    assert open_.key_leads_in(open_.key, host_key) == "debian"
    open_.script("open", *desired(open_.key), "from 198.51.100.0/24")
    with pytest.raises(AuthenticationFailed):
        open_.key_leads_in(open_.key, host_key)
    open_.script("open", *desired(open_.key))
    assert told(open_.script("look"), "from") == []
    assert open_.key_leads_in(open_.key, host_key) == "debian"


def test_sshd_listens_there_and_nowhere_else(open_: WayIn) -> None:
    lines = open_.run("ss", "--listening", "--tcp", "--numeric", "--no-header", "--processes").splitlines()
    assert [each.split()[3] for each in lines if "sshd" in each] == [f"{INSIDE}:{PORT}"]


def test_keys_of_others_stay_and_one_that_is_no_longer_wanted_goes(open_: WayIn, tmp_path: Path) -> None:
    other = keypair(tmp_path / "other")
    open_.script("open", *desired(other))
    (host_key,) = told(open_.script("look"), "host")
    assert open_.key_leads_in(other, host_key) == "debian"
    with pytest.raises(AuthenticationFailed):
        open_.key_leads_in(open_.key, host_key)
    lines = open_.read("/root/.ssh/authorized_keys").splitlines()
    assert lines == [THEIRS, other.with_suffix(".pub").read_text().strip()]
    open_.script("open", *desired(open_.key))
    assert open_.key_leads_in(open_.key, host_key) == "debian"


def test_a_key_that_was_there_before_stays_when_we_leave(open_: WayIn) -> None:
    open_.script("open", *desired(open_.key), f"key {THEIRS}")
    assert THEIRS in told(open_.script("look"), "key")
    open_.script("open", *desired(open_.key))
    assert THEIRS in open_.read("/root/.ssh/authorized_keys")
    assert THEIRS not in told(open_.script("look"), "key")


def test_a_way_in_that_is_not_active_does_not_listen_and_comes_back(open_: WayIn) -> None:
    open_.script("open", *desired(open_.key, active=False))
    assert (told(open_.script("look"), "active"), open_.enabled("ssh.service")) == ([], "disabled")
    open_.script("open", *desired(open_.key))
    assert (told(open_.script("look"), "active"), open_.enabled("ssh.service")) == (["yes"], "enabled")


def test_what_sshd_refuses_leaves_no_way_in_that_cannot_start(open_: WayIn) -> None:
    code, why = open_.refused("open", "port 99999", f"listen {INSIDE}", f"key {THEIRS}", "active yes")
    assert code == 3
    assert "sshd refuses its configuration" in why
    open_.run("sshd", "-t")
    open_.script("open", *desired(open_.key))


def test_it_is_there_again_after_a_restart(open_: WayIn) -> None:
    open_.restart()
    seen = open_.script("look")
    wait_for(lambda: told(open_.script("look"), "active") == ["yes"])
    assert open_.key_leads_in(open_.key, told(seen, "host")[0]) == "debian"


def test_closed_it_is_as_it_was_found(open_: WayIn) -> None:
    open_.script("close")
    assert told(open_.script("look"), "port") == []
    assert open_.read("/root/.ssh/authorized_keys") == f"{THEIRS}\n"
    assert not any(map(open_.exists, (SSHD_FILE, SSH_UNIT_FILE, "/usr/sbin/sshd")))
    left = open_.read("/var/lib/winhost.found").splitlines()
    assert {each.split(" ")[0] for each in left} <= {"network", "networkd"}


def test_an_sshd_that_was_there_before_stays_and_runs_as_it_ran(addressed: WayIn) -> None:
    addressed.run("apt-get", "update", "-q")
    addressed.run("apt-get", "install", "-q", "-y", "openssh-server")
    addressed.script("open", *desired(addressed.key))
    addressed.script("close")
    assert addressed.exists("/usr/sbin/sshd")
    assert addressed.enabled("ssh.service") == "enabled"
    assert addressed.run("systemctl", "is-active", "ssh.service").strip() == "active"
    assert not addressed.exists(SSHD_FILE)
