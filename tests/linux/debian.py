"""A real Debian with systemd as init, its own network adapter, and sshd at a static address. It is made once, and
written to a copy.
"""

import os
import platform
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from ipaddress import ip_address, ip_interface
from pathlib import Path
from tempfile import gettempdir

from filelock import FileLock

from tests.connect.sshd import keypair
from tests.processes import PATIENCE_S, wait_for
from winhost.connect.agent import Agent
from winhost.connect.ssh import START, SshConnector
from winhost.connect.wire_errors import Unreachable
from winhost.images.seed import GuestAddress
from winhost.lab.linux.linux_machine import SSH_UNIT, SSH_UNIT_FILE, SSHD_FILE, sshd_file
from winhost.model.fleet import LinuxHost
from winhost.model.secrets import SecretRef
from winhost.paths.wsl2 import network_file
from winhost.resources.linux.linux_scripts import session_text

ADAPTERS = "ve-wh-"
# Addresses of the documentation (TEST-NET-3), the last ones.
OUTSIDE, INSIDE, PREFIX = "203.0.113.253", "203.0.113.254", 30
TOOLS = ("debootstrap", "systemd-nspawn", "systemctl", "ip", "gpg", "dpkg-deb", "ssh-keygen", "mount")
PACKAGES = (
    "systemd,systemd-sysv,dbus,python3,openssh-server,gpgv,iproute2,sudo,nftables,ufw,netplan.io,xfsprogs,"
    "python3-aiohttp"  # of engines' stand-ins
)
LATER = ("podman",)  # what tests install themselves
KEPT = "srv/packages"
AGENT = START.removeprefix("exec ").partition("'")[0] + "import json,sys;"
MADE_OF = " ".join((PACKAGES, *LATER))
RESTARTS = 133  # exit code of systemd-nspawn for a machine that restarts itself


class NoDebian(Exception):
    """This machine cannot make a Debian. The message says why."""


class Debian:
    """A running Debian. `root`: its files, seen from outside; devices: those of this machine that it has, as
    OURS:THEIRS.
    """

    devices: tuple[str, ...] = ()
    tools = TOOLS

    def __init__(self, base: Path, folder: Path) -> None:
        lacking = [
            tool for tool in self.tools if shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None
        ]
        if platform.system() != "Linux" or os.geteuid() != 0 or lacking:
            raise NoDebian(f"it takes root and {', '.join(lacking or self.tools)}")
        self.root = folder / "root"
        self.key = keypair(folder / "key")
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._undo = ExitStack()
        # One at a time: all have the same address.
        self._undo.enter_context(FileLock(Path(gettempdir()) / "winhost-debian.lock"))
        try:
            self._make(base)
            self._undo.enter_context(layers(base, folder / "upper", self.root))
            self._furnish()
            self._begin()
        except BaseException:
            self.close()
            raise

    def connector(self) -> SshConnector:
        target = LinuxHost(
            name="gpu-03/debian",
            address=INSIDE,
            user="root",
            host_key=(self.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text(),
            key=SecretRef("file", str(self.key)),
            connect_timeout=5,
        )
        return SshConnector(target, session_text())

    def agent(self) -> Agent:
        return self.connector().open()

    def run(self, *command: str) -> str:
        """Run a command in the Debian, and return its output."""
        return sure(*self.inside(*command))

    def journal(self, unit: str) -> str:
        """Return the lines of a unit's journal, after all its processes have written theirs."""
        self.run("journalctl", "--sync")
        return self.run("journalctl", "--no-pager", "--output=cat", f"--unit={unit}")

    def inside(self, *command: str) -> list[str]:
        """Return a command that runs another one in the Debian, which has to run."""
        assert self._process is not None
        return ["nsenter", f"--target={children(self._process)[0]}", "--all", "--wd", "--", *command]

    def kill_agent(self) -> None:
        """Kill the agent that started last, as the kernel does when memory is short. Its child processes go on."""
        self.run("sh", "-c", f"pkill -KILL --newest -f '^{AGENT}' || true")

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, systemd: bool = True) -> None:
        """Start it. With an init other than systemd, nothing else is started."""
        machine = f"wh-{os.getpid()}"
        adapter = f"{ADAPTERS}{os.getpid()}"
        # One of an earlier machine, which the kernel takes away later than the machine, has the same address.
        for old in Path("/sys/class/net").glob(f"{ADAPTERS}*"):
            subprocess.run(["ip", "link", "delete", old.name], capture_output=True, timeout=PATIENCE_S, check=False)
        command = ["systemd-nspawn", "--quiet", f"--directory={self.root}", f"--machine={machine}", "--register=no"]
        command += ["--keep-unit", "--link-journal=no", "--console=pipe", "--resolv-conf=off", "--private-network"]
        # Named as WSL names it, so that the files are those that winhost writes.
        command += [f"--network-veth-extra={adapter}:eth0"]
        command += [f"--bind={each}" for each in self.devices]
        command += ["--boot"] if systemd else ["--as-pid2", "sleep", "infinity"]
        said = self._folder / "console"
        with said.open("w") as console:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=console, stderr=console)
        self._process = process
        wait_for(lambda: Path("/sys/class/net", adapter).exists() or process.poll() is not None)
        if process.poll() is not None:
            raise NoDebian(f"systemd-nspawn: {said.read_text()[-300:]}")
        sure("ip", "address", "add", f"{OUTSIDE}/{PREFIX}", "dev", adapter)
        sure("ip", "link", "set", adapter, "up")
        wait_for(lambda: children(process))

    @contextmanager
    def kept_going(self) -> Iterator[None]:
        """Start it again whenever it restarts itself, as a service manager does."""
        assert self._process is not None
        process = self._process

        def again() -> None:
            if process.wait(PATIENCE_S) == RESTARTS:
                self.start()

        watching = threading.Thread(target=again, daemon=True)
        watching.start()
        yield
        watching.join(PATIENCE_S)

    def stop(self) -> None:
        """Stop it, if it runs."""
        if self._process is not None:
            end(self._process)
        self._process = None

    def close(self) -> None:
        self.stop()
        self._undo.close()

    def _make(self, base: Path) -> None:
        make_base(base)

    def _furnish(self) -> None:
        """Install what the way in needs, with the text that winhost writes."""
        static = GuestAddress(ip_interface(f"{INSIDE}/{PREFIX}"), ip_address(OUTSIDE), (ip_address(OUTSIDE),))
        texts = {
            "/etc/systemd/network/10-winhost.network": network_file(static),
            SSHD_FILE: sshd_file(static.interface.ip),
            SSH_UNIT_FILE: SSH_UNIT,
            "/root/.ssh/authorized_keys": self.key.with_suffix(".pub").read_text(),
        }
        for path, text in texts.items():
            file = self.root / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        sure("systemctl", f"--root={self.root}", "enable", "systemd-networkd.service")

    def _begin(self) -> None:
        self.start()
        wait_for(self._answers)

    def _answers(self) -> bool:
        with suppress(Unreachable):
            self.agent().close()
            return True
        return False


@contextmanager
def layers(lower: Path, upper: Path, at: Path) -> Iterator[None]:
    """Mount `at` so that writes go to `upper`. They are not synced, because a crash only means to make it again."""
    for each in (lower, upper, at, work := upper.with_name(f"{upper.name}.work")):
        each.mkdir(exist_ok=True)
    options = f"lowerdir={lower},upperdir={upper},workdir={work},volatile"
    done = subprocess.run(
        ["mount", "-t", "overlay", "overlay", "-o", options, str(at)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    if done.returncode:
        raise NoDebian(f"no overlay that does not wait for the disk: {done.stderr.strip()}")
    try:
        yield
    finally:
        sure("umount", "--lazy", str(at))
        shutil.rmtree(work, ignore_errors=True)


def make_base(base: Path) -> None:
    """Make the Debian of all tests. Its packages are also a source in it, because it has no network."""
    complete = base / "complete"
    if complete.exists() and complete.read_text() == MADE_OF:
        return
    shutil.rmtree(base.parent, ignore_errors=True)
    base.parent.mkdir(exist_ok=True)
    at = base.with_name("making")
    with layers(base.with_name("nothing"), base, at):
        command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(at)]
        path = os.environ["PATH"] + ":/usr/sbin:/sbin"
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path}, timeout=1800)
        if done.returncode:
            raise NoDebian(f"debootstrap: {done.stdout[-300:]}")
        fetch(at, *LATER)
        keep_packages(at)
    complete.write_text(MADE_OF)


def fetch(root: Path, *packages: str) -> None:
    """Download packages and their dependencies, to be installed without a network."""
    for words in (["update"], ["install", "--yes", "--download-only", "--no-install-recommends", *packages]):
        done = subprocess.run(
            ["chroot", str(root), "apt-get", "--quiet", *words], capture_output=True, text=True, timeout=600
        )
        if done.returncode:
            raise NoDebian(f"apt-get {words[0]}: {done.stderr[-300:]}")


def keep_packages(root: Path) -> None:
    (root / "var/cache/apt/archives").rename(root / KEPT)
    debs = list((root / KEPT).glob("*.deb"))
    if not any(deb.name.startswith("openssh-server_") for deb in debs):
        raise NoDebian("the Debian that was fetched did not keep its packages")
    (root / KEPT / "Packages").write_text(
        "".join(described(deb, sure("dpkg-deb", "--field", str(deb))) for deb in debs)
    )
    (root / "etc/apt/sources.list").write_text(f"deb [trusted=yes] file:/{KEPT} ./\n")


def described(deb: Path, control: str) -> str:
    """Return an entry of an index of packages."""
    data = deb.read_bytes()
    return f"{control}Filename: ./{deb.name}\nSize: {len(data)}\nSHA256: {sha256(data).hexdigest()}\n\n"


def end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()  # systemd-nspawn then asks the machine to shut down
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(PATIENCE_S)


def children(process: "subprocess.Popen[bytes]") -> list[int]:
    return [int(each) for each in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def sure(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


# ---- a repository of packages


class Keyring:
    """A key that signs."""

    def __init__(self, folder: Path, algorithm: str = "ed25519") -> None:
        folder.mkdir(mode=0o700)
        self._home = folder
        self._gpg = ("gpg", "--batch", "--quiet", "--homedir", str(folder))
        sure(*self._gpg, "--passphrase", "", "--quick-generate-key", "winhost test", algorithm, "sign", "never")
        self.public = sure(*self._gpg, "--armor", "--export")
        self._rest()
        self.fingerprint = sure(*self._gpg, "--with-colons", "--list-keys").split("fpr:::::::::")[1].split(":")[0]

    @property
    def sha256(self) -> str:
        return sha256(self.public.encode()).hexdigest()

    def sign(self, release: Path) -> None:
        sure(*self._gpg, "--clearsign", "--output", str(release.with_name("InRelease")), str(release))
        self._rest()

    def _rest(self) -> None:
        """End its agent, which would stay otherwise."""
        sure("gpgconf", "--homedir", str(self._home), "--kill", "gpg-agent")


Control = dict[str, str]


def make_repository(folder: Path, keyring: Keyring, packages: list[Control], scripts: dict[str, str]) -> None:
    """Make a flat repository, like NVIDIA's. `scripts`: run when a package is configured."""
    folder.mkdir(parents=True)
    index = ""
    for control in packages:
        control = {"Architecture": "all", "Maintainer": "nobody", "Description": "a test", **control}
        text = "".join(f"{name}: {value}\n" for name, value in control.items())
        tree = folder / "tree"
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "DEBIAN/control").write_text(text)
        if script := scripts.get(control["Package"]):
            (tree / "DEBIAN/postinst").write_text(script)
            (tree / "DEBIAN/postinst").chmod(0o755)
        deb = folder / f"{control['Package']}_{control['Version']}.deb"
        sure("dpkg-deb", "--build", "--root-owner-group", str(tree), str(deb))
        shutil.rmtree(tree)
        index += described(deb, text)
    (folder / "Packages").write_text(index)
    digest = sha256(index.encode()).hexdigest()
    release = folder / "Release"
    release.write_text(f"Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n {digest} {len(index.encode())} Packages\n")
    keyring.sign(release)
