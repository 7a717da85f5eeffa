"""Whether an image of an engine's processes outlives a restart of the machine with its kernel, in QEMU without a GPU.

    python -m tests.vm.image_boots PACKAGES

PACKAGES is a folder with Debian's package of CRIU 4.2 or newer and those of its libraries, libc6 too: Debian 12 has
none that new. A processor is emulated, which needs no KVM; a start takes a minute or two.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.linux.debian import sure
from tests.processes import PATIENCE_S
from tests.vm.qemu_vm import EMULATED, QEMU
from tests.vm.small_linux import KERNEL, make_linux
from winhost.serving import process_image

HERE = Path(__file__).parent
OTHER = "linux-image-amd64"
# CRIU looks at sockets by the diagnoses, and tries a pair of network devices and nftables before it does anything.
MODULES = (
    *(
        "virtio_pci",
        "virtio_blk",
        "crc32c_generic",
        "ext4",
        "unix_diag",
        "tcp_diag",
        "udp_diag",
        "netlink_diag",
        "af_packet_diag",
    ),
    *("veth", "nf_tables"),
)
INIT = """\
#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /disk
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs dev /dev
for module in MODULES; do /bin/busybox modprobe $module; done
/bin/busybox mount -t ext4 /dev/vda /disk
for each in proc sys dev; do /bin/busybox mount --move /$each /disk/$each; done
exec /bin/busybox switch_root /disk /usr/bin/second
"""
# As systemd leaves a machine: room for process ids, one hierarchy of control groups, files in memory.
SECOND = """\
#!/bin/busybox sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
busybox mkdir -p /dev/shm /dev/pts
busybox mount -t tmpfs run /run
busybox mount -t tmpfs shm /dev/shm
busybox mount -t tmpfs tmp /tmp
busybox mount -t devpts pts /dev/pts
busybox mount -t cgroup2 cgroup2 /sys/fs/cgroup
busybox chmod 1777 /dev/shm /tmp
busybox ifconfig lo up
echo 4194304 >/proc/sys/kernel/pid_max
busybox mkdir /run/engine
busybox chown engine /run/engine
exec python3 -I /srv/guest.py
"""
STARTS = (
    ("the first", KERNEL, "take"),
    ("a restart", KERNEL, "confirm,take"),
    ("a restart, then a reset while it is not confirmed", KERNEL, "at-once,reset"),
    ("after the reset", KERNEL, "take"),
    ("with another kernel", OTHER, "take"),
    ("a restart under that one", OTHER, "confirm"),
    ("its image once more, the last one confirmed", OTHER, ""),
)


def files(modules: tuple[str, ...]) -> dict[str, str]:
    return {
        "init": INIT.replace("MODULES", " ".join(modules)),
        "usr/bin/second": SECOND,
        "srv/guest.py": (HERE / "image_guest.py").read_text(),
        "srv/engine.py": (HERE / "counting_engine.py").read_text(),
        "srv/process_image.py": Path(process_image.__file__).read_text(),
        "srv/model/weights": "w",
        "etc/passwd": "root:x:0:0::/root:/bin/sh\nengine:x:990:990::/:/bin/false\n",
        "etc/group": "root:x:0:\nengine:x:990:\n",
        "etc/machine-id": "0123456789abcdef0123456789abcdef\n",
    }


def make_disk(folder: Path, root: Path, packages: Path) -> Path:
    whole, disk = folder / "root", folder / "disk"
    shutil.copytree(root, whole, symlinks=True)
    for each in sorted(packages.glob("*.deb")):
        sure("dpkg-deb", "--extract", str(each), str(whole))
    for name in ("proc", "sys", "dev", "run", "tmp", "srv/image"):
        (whole / name).mkdir(exist_ok=True)
    (whole / "srv/image").chmod(0o700)
    sure("mke2fs", "-q", "-t", "ext4", "-d", str(whole), str(disk), "4G")
    return disk


def start(linux: tuple[Path, Path], disk: Path, steps: str, console: Path) -> dict[str, Any]:
    kernel, initramfs = linux
    command = [*QEMU, *EMULATED, "-smp", "2", "-m", "1536", "-no-reboot", "-serial", f"file:{console}"]
    command += ["-kernel", str(kernel), "-initrd", str(initramfs)]
    command += ["-append", f"console=ttyS0 quiet panic=-1 steps={steps}"]
    command += ["-drive", f"if=none,id=disk,format=raw,cache=unsafe,file={disk}"]
    command += ["-device", "virtio-blk-pci,drive=disk", "-device", "virtio-rng-pci"]
    subprocess.run(command, check=True, timeout=2 * PATIENCE_S)
    text = console.read_text(errors="replace")
    found = re.search(r"^winhost:(\{.*\})", text, re.MULTILINE)
    assert found, text[-3000:]
    said: dict[str, Any] = {**json.loads(found[1]), "log": re.findall(r"^unit: (.*?)\r?$", text, re.MULTILINE)}
    return said


def main(packages: Path) -> None:
    cache = Path.home() / ".cache/winhost-tests/image-boots"
    linuxes = {each: make_linux(cache / each, files(MODULES), each, MODULES) for each in (KERNEL, OTHER)}
    with TemporaryDirectory() as folder:
        disk = make_disk(Path(folder), cache / KERNEL / "root", packages)
        for name, kernel, steps in STARTS:
            sys.stdout.write(f"\n{name}: {kernel} {steps}\n")
            said = start(linuxes[kernel], disk, steps, Path(folder) / "console")
            sys.stdout.write(json.dumps(said, indent=1) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
