"""The parts of `make real`: which tests, what they need, and which machines they must run on."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.whole_plan import Given
from tests.house.tree import ROOT
from tests.vm.qemu_vm import FIRMWARE, has_kvm
from winhost.lab.powershell.powershell_engine import find_engine
from winhost.model.errors import UsageError

PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
WORKERS = os.cpu_count() or 1
# What `make test` leaves out or samples.
SLOW = "(real or costly or hypothesis) and not crash"


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
    """programs: the programs and folders that it needs, each with its Debian package. required: whether it must run
    on this machine. marks: an expression. waits: mostly for other programs, so that it runs beside parts that compute.
    """

    tests: Sequence[str]
    programs: dict[str, str]
    required: Callable[[], bool]
    marks: str = "not crash"
    options: Sequence[str] = ()
    only_by_name: bool = False
    waits: bool = False
    workers: int = 1


LINUX = "tests/linux/"
WSL_JOB = f"{LINUX}test_wsl_job.py"
OF_THEIR_OWN = {
    "gateway": Part(["tests/gateway"], {}, lambda: True, SLOW),
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
            *sorted(f"{LINUX}{file.name}" for file in (ROOT / LINUX).glob("test_debian*.py")),
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
            "sshd": "openssh-server",
            "ssh-keygen": "openssh-client",
            "cc": "gcc",
            "shellcheck": "shellcheck",
            "dash": "dash",
            "busybox": "busybox",
        },
        is_root_of_linux,
        "not crash and not powershell",
        waits=True,
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
            "mkfs.ext4": "e2fsprogs",
            "mkfs.xfs": "xfsprogs",
            "mkfs.btrfs": "btrfs-progs",
            "cryptsetup": "cryptsetup-bin",
            "pvcreate": "lvm2",
            "losetup": "mount",
            "mkswap": "util-linux",
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
    # npm's .NET SDK is fetched by its test, and kept in the cache of the tests (320 MB).
    "csharp": Part(
        ["tests/resources/test_embedded_csharp.py"],
        {"npm": "npm", "cc": "gcc", "/usr/lib/x86_64-linux-gnu/libcrypto.so.3": "libssl3"},
        lambda: can_install() and platform.machine() == "x86_64",
    ),
    # The same C# on Wine's own Windows API, and against .NET Framework's (another 480 MB in that cache).
    "wine": Part(
        ["tests/resources/test_csharp_on_wine.py"],
        {"npm": "npm", "cc": "gcc", "/usr/lib/wine/wine64": "wine64", "/usr/lib/mono/4.8-api": "mono-devel"},
        lambda: can_install() and platform.machine() == "x86_64",
    ),
    "cluster": Part(["tests/cluster/test_with_kubectl.py"], {"kubectl": "kubernetes-client"}, can_install),
    "proxies": Part(
        ["tests/serving/test_proxies.py"],
        {"haproxy": "haproxy", "nginx": "nginx-light", "caddy": "caddy"},
        can_install,
    ),
    "monitoring": Part(
        ["tests/serving/test_monitoring.py"],
        {"promtool": "prometheus", "prometheus": "prometheus"},
        can_install,
    ),
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
        waits=True,
    ),
    "containers": Part(
        [
            *(f"{LINUX}test_{name}.py" for name in ("cluster", "container_image", "model_files")),
            "tests/images/test_with_podman.py",
        ],
        {"podman": "podman", "unshare": "util-linux"},
        is_root_of_linux,
        waits=True,
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
    # Where an NVIDIA GPU and the files are that tests/gpu/whole_plan.py names; with WINHOST_GPU_STANDIN without a GPU.
    "gpu": Part(
        ["tests/gpu"],
        {
            "systemd-nspawn": "systemd-container",
            "ip": "iproute2",
            "ssh-keygen": "openssh-client",
            "nsenter": "util-linux",
        },
        lambda: is_root_of_linux() and not Given.from_environment().lacking(),
        "real",
        only_by_name=True,
    ),
    "powershell": Part(["tests/powershell", "tests/lab/powershell", WSL_JOB], {}, has_powershell),
}
PARTS = {
    "sweeps": Part(
        ["tests"],
        {},
        lambda: True,
        SLOW,
        [f"--ignore={test}" for part in OF_THEIR_OWN.values() for test in part.tests],
        workers=WORKERS,
    ),
    **OF_THEIR_OWN,
}
