"""The files that the path writes into a distro, checked by the programs that read them."""

import subprocess
from ipaddress import ip_address
from pathlib import Path
from shutil import which

import pytest

from tests.linux.debian import Keyring
from tests.linux.openpgp import fingerprint
from tests.linux.sandbox import Sandbox
from tests.linux.test_agent import CTK
from tests.processes import PATIENCE_S
from winhost.lab.linux.linux_machine import SSH_UNIT, SSH_UNIT_FILE, sshd_file
from winhost.paths.distro_containers import (
    CDI_PATH,
    CDI_PATH_FILE,
    CDI_SERVICE,
    CDI_SERVICE_FILE,
    TOOLKIT,
    Repository,
    docker,
)

pytestmark = pytest.mark.real


def needs(*programs: str) -> None:
    lacking = [program for program in programs if which(program, path="/usr/sbin:/usr/bin") is None]
    if lacking:
        pytest.skip(f"there is no {', '.join(lacking)} here")


def test_systemd_has_nothing_to_say_against_the_units(sandbox: Sandbox) -> None:
    needs("systemd-analyze", "sshd")
    sandbox.write("/usr/bin/nvidia-ctk", CTK, 0o755)
    for path, text in ((CDI_SERVICE_FILE, CDI_SERVICE), (CDI_PATH_FILE, CDI_PATH), (SSH_UNIT_FILE, SSH_UNIT)):
        sandbox.write(path, text)
    done = sandbox.run("systemd-analyze", "verify", "winhost-cdi.service", "winhost-cdi.path", "ssh.service")
    said = [line for line in done.stderr.splitlines() if "winhost" in line or "ssh" in line]
    assert (done.returncode, said) == (0, [])


def test_systemd_would_find_a_mistake(sandbox: Sandbox) -> None:
    needs("systemd-analyze")
    sandbox.write("/etc/systemd/system/winhost-wrong.service", CDI_SERVICE.replace("Type=oneshot", "Type=onceshot"))
    done = sandbox.run("systemd-analyze", "verify", "winhost-wrong.service")
    assert "onceshot" in done.stderr


@pytest.mark.parametrize("listen", ["198.51.100.7", "2001:db8::7"])
def test_sshd_takes_the_drop_in_and_understands_it(sandbox: Sandbox, tmp_path: Path, listen: str) -> None:
    needs("sshd", "ssh-keygen")
    sandbox.path("/run/sshd").mkdir(exist_ok=True)
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True, timeout=PATIENCE_S
    )
    sandbox.write("/etc/ssh/key", (tmp_path / "key").read_text(), 0o600)
    sandbox.write("/etc/ssh/sshd_config.d/10-winhost.conf", sshd_file(ip_address(listen)))
    sandbox.write("/etc/ssh/sshd_config.d/50-cloud-init.conf", "PasswordAuthentication yes\n")
    done = sandbox.run("sshd", "-T", "-h", "/etc/ssh/key")
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert said["passwordauthentication"] == "no"
    assert said["kbdinteractiveauthentication"] == "no"
    assert said["permitrootlogin"] in ("prohibit-password", "without-password")
    assert said["authenticationmethods"] == "publickey"
    assert [line for line in done.stdout.splitlines() if line.startswith("listenaddress")] == [
        f"listenaddress {f'[{listen}]' if ':' in listen else listen}:22"
    ]


FROM = {
    "10.1.2.3": False,
    "10.1.3.3": True,
    "192.0.2.9": False,
    "2001:db8::5": False,
    "fd00::1": True,
    "127.0.0.1": False,
}


@pytest.mark.parametrize(("address", "denied"), FROM.items())
def test_sshd_denies_everybody_who_comes_from_elsewhere(
    sandbox: Sandbox, tmp_path: Path, address: str, denied: bool
) -> None:
    needs("sshd", "ssh-keygen")
    sandbox.path("/run/sshd").mkdir(exist_ok=True)
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True, timeout=PATIENCE_S
    )
    sandbox.write("/etc/ssh/key", (tmp_path / "key").read_text(), 0o600)
    text = sshd_file(ip_address("198.51.100.7"), 22, ["10.1.2.0/24", "192.0.2.9/32", "2001:db8::/32"])
    sandbox.write("/etc/ssh/sshd_config.d/10-winhost.conf", text)
    sandbox.write("/etc/ssh/sshd_config.d/50-theirs.conf", "AllowUsers root\n")
    where = f"user=root,host={address},addr={address}"
    done = sandbox.run("sshd", "-T", "-h", "/etc/ssh/key", "-C", where)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert ("denyusers *" in said, "allowusers root" in said) == (denied, True)


@pytest.mark.parametrize("algorithm", ["ed25519", "rsa2048"])
def test_a_fingerprint_is_the_one_that_gpg_tells(tmp_path: Path, algorithm: str) -> None:
    needs("gpg")
    keyring = Keyring(tmp_path / "gpg", algorithm)
    assert fingerprint(keyring.public) == keyring.fingerprint


@pytest.mark.parametrize("text", ["", "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n!!!\n-----END", "x" * 100])
def test_what_is_no_key_has_no_fingerprint(text: str) -> None:
    with pytest.raises(ValueError, match="it is no"):
        fingerprint(text)


@pytest.mark.parametrize("source", [TOOLKIT, docker("noble")], ids=lambda source: source.name)
def test_each_key_that_we_ship_is_the_one_that_its_maker_publishes(source: Repository) -> None:
    assert fingerprint(source.key) == source.fingerprint
