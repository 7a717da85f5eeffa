"""A booted Ubuntu that has the NVIDIA GPUs of this machine, or pretends to: systemd, sshd, its own network adapter.

Its files are a tree that is only read; what is written lies in a layer, so that two looks at it can be compared.
"""

import os
import stat
from hashlib import file_digest
from pathlib import Path

from tests.linux.debian import Debian, sure
from tests.processes import wait_for

OFFLINE = "/srv/winhost-offline"
DRIVER = Path("/usr/local/nvidia")  # of images that have the driver's programs and libraries in one folder
NODES = ("nvidia[0-9]*", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
ENGINES = (
    "VLLM_USE_FLASHINFER_SAMPLER=0 VLLM_ALLREDUCE_USE_SYMM_MEM=0 NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 "
    "NVSHMEM_DISABLE_NVLS=1 NCCL_DEBUG=INFO"
)
# The copies that groupadd keeps of what was before, and the folder in which systemd keeps caches of dynamic users.
LEFT = ("etc/group-", "etc/gshadow-", "var/cache/private")
# What a Linux changes by running: logs, caches, clocks, and lists of what runs.
CHANGES_BY_ITSELF = (
    "etc/.pwd.lock",
    "etc/ld.so.cache",
    "root/.cache",
    "run",
    "tmp",
    "var/cache/apt",
    "var/cache/ldconfig",
    "var/lib/dbus",
    "var/lib/systemd",
    "var/log",
    "var/tmp",
)
# As an H200 in a VM said, with driver 580.159.04.
BUS = """\
0x00000000fb000000 0x00000000fbffffff 0x0000000000040200
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000004000000000 0x0000007fffffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000008000000000 0x0000008001ffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
"""
VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n"
# {gpus}: numbers from 0.
SMI = """\
#!/bin/sh
for each in {gpus}; do
  uuid=GPU-5c359835-765f-d5c4-2c96-93e7c73706a$each
  case "$*" in
    *pci.bus_id*) echo "00000000:00:0$((6 + each)).0, $uuid, NVIDIA H200, 143771" ;;
    *utilization.gpu*) echo "$each, NVIDIA H200, 143771, 0, 0" ;;
    *memory.used*) echo 0 ;;
    *) echo "GPU $each: NVIDIA H200 (UUID: $uuid)" ;;
  esac
done
"""


PRETEND = """\
mount --bind /srv/pretended/driver /proc/driver
mkdir /run/sys
mount -t tmpfs tmpfs /run/sys
cd /sys
for each in * bus/*; do
    case $each in bus | bus/pci | module) ;; *) mkdir -p /run/sys/$each; mount --rbind $each /run/sys/$each ;; esac
done
mkdir -p /run/sys/bus/pci
cp -a /srv/pretended/devices /run/sys/bus/pci/devices
cp -a /srv/pretended/module /run/sys/module
mount --rbind /run/sys /sys
"""


def nodes() -> list[str]:
    return sorted(str(node) for pattern in NODES for node in Path("/dev").glob(pattern) if node.is_char_device())


class GpuLinux(Debian):
    """offline: the folder that lies at OFFLINE in it; stand_in: it pretends to have so many GPUs."""

    tools = ("systemd-nspawn", "systemctl", "ip", "ssh-keygen", "mount", "nsenter")

    def __init__(self, tree: Path, folder: Path, offline: Path, *, stand_in: int) -> None:
        self._stand_in, self._pretended = stand_in, folder / "pretended"
        self.devices = (f"{offline}:{OFFLINE}", *([] if stand_in else nodes()))
        if not stand_in and DRIVER.is_dir():
            self.devices += (str(DRIVER),)
        self._upper, self._tree = folder / "upper", tree
        super().__init__(tree, folder)

    def _make(self, base: Path) -> None:
        """It is there, and stays as it is."""

    def _furnish(self) -> None:
        super()._furnish()
        for name in ("etc/ssh/ssh_host_ed25519_key", "etc/machine-id"):
            (self.root / name).unlink(missing_ok=True)
        sure("ssh-keygen", "-A", "-f", str(self.root))
        (self.root / "etc/machine-id").write_text(f"{os.urandom(16).hex()}\n")
        (self.root / OFFLINE.lstrip("/")).mkdir(parents=True, exist_ok=True)
        # sshd is a service of its own, not one that a socket starts; nothing waits for a network of others.
        sure("systemctl", f"--root={self.root}", "disable", "ssh.socket")
        for unit in ("systemd-networkd-wait-online.service", "console-getty.service"):
            link = self.root / "etc/systemd/system" / unit
            link.unlink(missing_ok=True)
            link.symlink_to("/dev/null")
        sure("systemctl", f"--root={self.root}", "enable", "ssh.service")
        # The packed vLLM lacks FlashInfer; multicast over NVLink is left off on a host that others share.
        (self.root / "etc/systemd/system.conf.d").mkdir(exist_ok=True)
        (self.root / "etc/systemd/system.conf.d/engines.conf").write_text(f"[Manager]\nDefaultEnvironment={ENGINES}\n")
        smi = self.root / "usr/bin/nvidia-smi"
        if self._stand_in:
            smi.write_text(SMI.replace("{gpus}", " ".join(map(str, range(self._stand_in)))))
            smi.chmod(0o755)
        elif DRIVER.is_dir():
            if not smi.exists():
                smi.symlink_to(DRIVER / "bin/nvidia-smi")
            (self.root / "etc/ld.so.conf.d/nvidia.conf").write_text(f"{DRIVER}/lib64\n{DRIVER}/lib\n")

    def chroot(self, *command: str) -> None:
        sure("chroot", str(self.root), *command)

    def _begin(self) -> None:
        self.start()
        wait_for(lambda: (self.root / "run").exists())
        if self._stand_in:
            self._pretend()
        else:
            self.run("ldconfig")
        wait_for(self._answers)

    def _pretend(self) -> None:
        """A PCI bus and a kernel module, made of files."""
        at = self.root / "srv/pretended"
        (at / "drivers/nvidia").mkdir(parents=True)
        texts = {"vendor": "0x10de", "device": "0x2335", "class": "0x030200", "numa_node": "-1", "resource": BUS}
        for number in range(self._stand_in):
            device = at / f"devices/0000:00:0{6 + number}.0"
            device.mkdir(parents=True)
            for name, text in texts.items():
                (device / name).write_text(f"{text}\n" if name != "resource" else text)
            (device / "driver").symlink_to("/srv/pretended/drivers/nvidia")
        for path, text in (("driver/nvidia/version", VERSION), ("module/nvidia/version", "580.159.04\n")):
            (at / path).parent.mkdir(parents=True)
            (at / path).write_text(text)
        # A kernel of a sandbox may have neither; sysfs takes no new folder, so it is another one.
        self.run("sh", "-ec", PRETEND)

    def look(self) -> dict[str, str]:
        """What differs from the tree: kind, owner, mode and content of each path of the layer."""
        found = {}
        for folder, names, files in os.walk(self._upper):
            for name in (*names, *files):
                path = Path(folder, name)
                below = path.relative_to(self._upper).as_posix()
                if not any(below == each or below.startswith(f"{each}/") for each in CHANGES_BY_ITSELF):
                    found[below] = description(path)
                    if found[below] == description(self._tree / below):  # it was written back as it was
                        del found[below]
        return found


def description(path: Path) -> str:
    try:
        seen = path.lstat()
    except FileNotFoundError:
        return "nothing"
    whose = f"{stat.filemode(seen.st_mode)} {seen.st_uid}:{seen.st_gid}"
    if stat.S_ISLNK(seen.st_mode):
        return f"{whose} -> {path.readlink()}"
    if stat.S_ISREG(seen.st_mode):
        with path.open("rb") as file:
            return f"{whose} {seen.st_size} {file_digest(file, 'sha256').hexdigest()}"
    return whose


def differences(before: dict[str, str], after: dict[str, str]) -> dict[str, list[str]]:
    """Of folders, too."""
    return {
        "added": sorted(after.keys() - before.keys() - {*LEFT}),
        "gone": sorted(before.keys() - after.keys()),
        "changed": sorted(path for path in before.keys() & after.keys() if before[path] != after[path]),
    }


__all__ = ["OFFLINE", "GpuLinux", "differences", "nodes"]
