"""`make real`: what takes long or needs real programs, part by part, and whether each part ran.

    python -m tests.real [PART…]

It installs what a part needs, where it may (root, with apt). A part is required where its needs can be met; the exit
code is 1 where a test failed, or one of a required part was skipped.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.vm.qemu_vm import FIRMWARE, has_kvm
from winhost.lab.powershell.powershell_engine import find_engine
from winhost.model.errors import UsageError

PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
MOST_S = 2400


def is_root_of_linux() -> bool:
    """One who may mount: a root in a container often may not."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("unshare", path=PATH) is None:
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, timeout=300).returncode == 0


def can_install() -> bool:
    return sys.platform == "linux" and os.geteuid() == 0 and shutil.which("apt-get") is not None


def has_powershell() -> bool:
    try:
        return bool(find_engine())
    except UsageError:
        return bool(os.environ.get("WINHOST_PWSH"))


@dataclass(frozen=True)
class Part:
    """Tests; programs and folders that they need, each with its Debian package; whether this machine is one for them;
    which of the tests, as an expression of marks; and what else pytest is told.
    """

    tests: Sequence[str]
    programs: dict[str, str]
    required: Callable[[], bool]
    marks: str = "not crash"
    options: Sequence[str] = ()
    only_by_name: bool = False


LINUX = "tests/linux/"
WSL_JOB = f"{LINUX}test_wsl_job.py"
PARTS = {
    "sweeps": Part(
        ["tests"],
        {},
        lambda: True,
        "costly and not crash and not real",
        ["--ignore", "tests/powershell"],
    ),
    "properties": Part(
        ["tests"],
        {},
        lambda: True,
        "hypothesis and not costly and not crash and not real",
        ["--ignore", "tests/powershell"],
    ),
    "processes": Part(
        [
            "tests/cli/test_asking.py",
            "tests/cli/test_streams.py",
            "tests/engine/test_killed.py",
            "tests/engine/test_stopped.py",
            "tests/lab/test_try_windows.py",
        ],
        {},
        lambda: os.name == "posix",
    ),
    "hostile": Part(["tests/hostile", "tests/symptoms/test_robust.py"], {}, lambda: True, "real"),
    # A gateway with the oldest aiohttp, which has no wheel for a later Python.
    "gateway": Part(["tests/gateway"], {}, lambda: shutil.which("python3.11") is not None, "real"),
    "browser": Part(
        ["tests/render/test_report_in_a_browser.py"],
        {"chromium": "chromium", "chromedriver": "chromium-driver", "pdftotext": "poppler-utils"},
        can_install,
    ),
    "ssh": Part(
        ["tests/connect/test_ssh.py", "tests/connect/test_linux_hosts.py", "tests/connect/test_slow.py"],
        {"sshd": "openssh-server", "ssh-keygen": "openssh-client", "ps": "procps"},
        can_install,
    ),
    "smb": Part(["tests/connect/test_admin_share.py"], {"smbd": "samba", "smbpasswd": "samba"}, is_root_of_linux),
    "agent": Part(
        [
            f"{LINUX}test_{name}.py"
            for name in (
                "agent",
                "by_hand_real",
                "host_key",
                "pci_hyperv",
                "probe",
                "python_venv",
                "sets_at_once",
                "user_processes",
                "written",
            )
        ],
        {"cc": "gcc", "nsenter": "util-linux", "sshd": "openssh-server", "systemd-analyze": "systemd"},
        is_root_of_linux,
    ),
    "debian": Part(
        [
            f"{LINUX}test_debian.py",
            f"{LINUX}test_debian_accounts.py",
            f"{LINUX}test_debian_by_hand.py",
            f"{LINUX}test_debian_container.py",
            f"{LINUX}test_debian_cut.py",
            f"{LINUX}test_debian_firewall.py",
            f"{LINUX}test_debian_gateway.py",
            f"{LINUX}test_debian_killed.py",
            f"{LINUX}test_debian_stack.py",
            f"{LINUX}test_debian_kernel.py",
            f"{LINUX}test_debian_mirror.py",
            f"{LINUX}test_debian_mount.py",
            f"{LINUX}test_debian_probe.py",
            f"{LINUX}test_debian_restart.py",
            f"{LINUX}test_debian_serve.py",
            f"{LINUX}test_debian_serving.py",
            f"{LINUX}test_debian_sets.py",
            f"{LINUX}test_debian_turns.py",
            f"{LINUX}test_debian_stack_turns.py",
            f"{LINUX}test_sudo.py",
            f"{LINUX}test_way_in.py",
            f"{LINUX}test_wsl.py",
            WSL_JOB,
        ],
        {
            "debootstrap": "debootstrap",
            "systemd-nspawn": "systemd-container",
            "ip": "iproute2",
            "gpg": "gpg",
            "ssh-keygen": "openssh-client",
            "cc": "gcc",
            "shellcheck": "shellcheck",
            "dash": "dash",
            "busybox": "busybox",
        },
        is_root_of_linux,
        "not crash and not powershell",
    ),
    "disks": Part(
        [f"{LINUX}test_data_disk.py"],
        {
            "sgdisk": "gdisk",
            "sfdisk": "fdisk",
            "mkfs.ext4": "e2fsprogs",
            "mkfs.xfs": "xfsprogs",
            "mkfs.btrfs": "btrfs-progs",
            "cryptsetup": "cryptsetup-bin",
            "pvcreate": "lvm2",
            "losetup": "mount",
        },
        lambda: is_root_of_linux() and Path("/dev/loop-control").exists(),
    ),
    # On image files: no disk of this machine is touched.
    "autoinstall": Part(
        [f"tests/autoinstall/test_{name}.py" for name in ("guard", "whole_disks", "media", "virtual_media")],
        {
            "sgdisk": "gdisk",
            "sfdisk": "fdisk",
            "mkntfs": "ntfs-3g",
            "mkfs.vfat": "dosfstools",
            "mke2fs": "e2fsprogs",
            "blkid": "util-linux",
            "xorriso": "xorriso",
        },
        can_install,
    ),
    "images": Part(
        ["tests/images"],
        {
            "qemu-img": "qemu-utils",
            "isoinfo": "genisoimage",
            "xorriso": "xorriso",
            "blkid": "util-linux",
            "cloud-init": "cloud-init",
        },
        can_install,
        options=["--ignore", "tests/images/test_with_podman.py"],  # of the part "containers", which brings podman
    ),
    "cluster": Part(["tests/cluster/test_with_kubectl.py"], {"kubectl": "kubernetes-client"}, can_install),
    "compose": Part(
        ["tests/serving/test_compose_parser.py"],
        {"dpkg-deb": "dpkg"},
        lambda: can_install() and platform.machine() == "x86_64",
    ),
    "guest": Part(
        ["tests/vm"],
        {
            "qemu-system-x86_64": "qemu-system-x86",
            f"{FIRMWARE}": "ovmf",
            "qemu-img": "qemu-utils",
            "debootstrap": "debootstrap",
            "mcopy": "mtools",
            "mkfs.vfat": "dosfstools",
            "mkfs.ext4": "e2fsprogs",
            "sfdisk": "fdisk",
            "ssh": "openssh-client",
            "depmod": "kmod",
            "cpio": "cpio",
        },
        lambda: is_root_of_linux() and has_kvm(),
    ),
    "containers": Part(
        [
            *(f"{LINUX}test_{name}.py" for name in ("cluster", "container_image", "model_files")),
            "tests/images/test_with_podman.py",
        ],
        {"podman": "podman", "unshare": "util-linux"},
        is_root_of_linux,
    ),
    # The installer's own code, where its source is at hand; it is no need of ours.
    "judges": Part(
        [f"tests/autoinstall/test_{name}.py" for name in ("judges", "judged_bytes")],
        {"sgdisk": "gdisk", "sfdisk": "fdisk", "mkntfs": "ntfs-3g", "mkfs.vfat": "dosfstools", "udevadm": "udev"},
        lambda: bool(os.environ.get("WINHOST_SUBIQUITY") and os.environ.get("WINHOST_CURTIN")),
        "real",
    ),
    # 5 GB are fetched the first time, and kept: see tests/vllm/real_engine.py. Only by name, as long as some of its
    # tests fail on a busy machine.
    "vllm": Part(
        ["tests/vllm"],
        {
            "numactl": "numactl",
            "unshare": "util-linux",
            "ip": "iproute2",
            "ps": "procps",
            "debootstrap": "debootstrap",
            "systemd-nspawn": "systemd-container",
        },
        lambda: is_root_of_linux() and platform.machine() == "x86_64",
        "real",
        only_by_name=True,
    ),
    "powershell": Part(["tests/powershell", "tests/lab/powershell", WSL_JOB], {}, has_powershell),
}


@dataclass(frozen=True)
class Result:
    """How a part ended. why: of what was skipped, each reason once."""

    ran: int
    failed: int
    skipped: int
    seconds: float
    why: tuple[str, ...] = ()

    def verdict(self, required: bool) -> str:
        if self.failed or (self.ran == 0 and not self.skipped):
            return "FAILED"
        if self.skipped:
            return "FAILED: skipped, and required here" if required else "skipped" if not self.ran else "ran in part"
        return "ran"


def is_there(program: str) -> bool:
    return Path(program).exists() if program.startswith("/") else shutil.which(program, path=PATH) is not None


def install(programs: dict[str, str]) -> None:
    lacking = sorted({package for program, package in programs.items() if not is_there(program)})
    if lacking and can_install():
        if "cloud-init" in lacking:  # it is read with, and shall not set this machine up when that starts again
            Path("/etc/cloud").mkdir(exist_ok=True)
            Path("/etc/cloud/cloud-init.disabled").touch()
        quietly = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update", "--quiet"], ["install", "--yes", "--quiet", "--no-install-recommends", *lacking]):
            subprocess.run(["apt-get", *words], env=quietly, timeout=MOST_S, check=False)


def run(part: Part, report: Path) -> Result:
    workers = ["-n", "auto", "--dist", "loadfile", f"--junitxml={report}"]
    began = time.monotonic()
    pytest = [sys.executable, "-m", "pytest", "--costly", "some"]
    command = [*pytest, "-m", part.marks, *part.options, *workers, *part.tests]
    ended = subprocess.run(command, env={**os.environ, "PATH": PATH}, timeout=MOST_S, check=False)
    return read(report, ended.returncode, time.monotonic() - began)


def read(report: Path, code: int, seconds: float) -> Result:
    """From the report that pytest writes; a code that no test explains is a failure, too."""
    if not report.exists():
        return Result(0, 1, 0, seconds)
    cases = list(ElementTree.parse(report).iter("testcase"))
    skipped = [found for case in cases if (found := case.find("skipped")) is not None]
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    why = tuple(sorted({found.get("message", "") for found in skipped}))
    return Result(len(cases) - len(skipped), max(failed, int(code != 0)), len(skipped), seconds, why)


def main(names: Sequence[str]) -> int:
    rows, failed = [], False
    for name in names or [name for name, part in PARTS.items() if not part.only_by_name]:
        part = PARTS[name]
        print(f"== {name}", flush=True)
        install(part.programs)
        with tempfile.TemporaryDirectory() as folder:
            result = run(part, Path(folder) / "report.xml")
        verdict = result.verdict(part.required())
        failed |= verdict.startswith("FAILED")
        rows += [f"{name:12}{verdict}: {result.ran} ran, {result.skipped} skipped, {result.seconds:.0f} s"]
        rows += [f"{'':12}{why}" for why in result.why]
    print("\n".join(["", *rows]))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
