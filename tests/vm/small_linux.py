"""A Linux of a kernel and an initramfs with Python, in the place of an installer: made of Debian's packages."""

import re
import shutil
import subprocess
from pathlib import Path

from tests.linux.debian import sure
from tests.processes import PATIENCE_S

KERNEL = "linux-image-cloud-amd64"
MODULES = ("efivarfs", "virtio_blk", "virtio_pci")
PACKAGES = (
    "busybox-static",
    "util-linux",
    "libc6",
    "libblkid1",
    "libuuid1",
    "libcap-ng0",
    "libexpat1",
    "zlib1g",
    "libssl3",
    "libcrypt1",
)
TOOLS = ("apt-get", "apt-cache", "dpkg-deb", "depmod", "cpio", "mcopy", "mkfs.vfat")
# What it does is its program's; whatever that is, it ends.
INIT = """\
#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /run /tmp
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs dev /dev
for module in MODULES; do /bin/busybox modprobe $module; done
/bin/busybox mount -t efivarfs efivarfs /sys/firmware/efi/efivars
/bin/busybox sleep 1
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
/usr/bin/python3 -I /program.py
/bin/busybox reboot -f
"""


class NoLinux(Exception):
    """Why this machine cannot make it."""


def make_linux(
    folder: Path, files: dict[str, str], kernel: str = KERNEL, modules: tuple[str, ...] = MODULES
) -> tuple[Path, Path]:
    """Kernel, which is a program for UEFI, and initramfs, with these files. Packages stay in the folder."""
    lacking = [tool for tool in TOOLS if shutil.which(tool, path="/usr/sbin:/usr/bin:/sbin:/bin") is None]
    if lacking:
        raise NoLinux(f"it takes {', '.join(lacking)}")
    root = folder / "root"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _unpack(folder, root, kernel, modules)
        (folder / "complete").touch()
    for path, text in {"init": INIT.replace("MODULES", " ".join(MODULES)), **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    for path in ("init", *(path for path in files if path.startswith("usr/bin/"))):
        (root / path).chmod(0o755)
    initramfs = folder / "initramfs"
    listed = subprocess.run(
        ["find", ".", "-print0"], cwd=root, capture_output=True, check=True, timeout=PATIENCE_S
    ).stdout
    made = ["cpio", "--null", "--create", "--format=newc", "--quiet", "--owner=0:0"]
    archive = subprocess.run(made, cwd=root, input=listed, capture_output=True, check=True, timeout=PATIENCE_S).stdout
    initramfs.write_bytes(archive)
    (image,) = (folder / "kernel/boot").glob("vmlinuz-*")
    return image, initramfs


def _depends(package: str, pattern: str) -> str:
    said = sure("apt-cache", "depends", package)
    found = re.search(pattern, said)
    if found is None:
        raise NoLinux(f"{package} is not Debian's")
    return found[0]


def _unpack(folder: Path, root: Path, image: str, wanted: tuple[str, ...]) -> None:
    kernel = _depends(image, rf"linux-image-\d\S+{image.removeprefix('linux-image')}")
    python = _depends("python3-minimal", r"python3\.\d+")
    names = [kernel, f"{python}-minimal", f"lib{python}-minimal", f"lib{python}-stdlib", *PACKAGES]
    done = subprocess.run(["apt-get", "download", *names], cwd=folder, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise NoLinux(f"apt-get: {done.stderr[-300:]}")
    for package in folder.glob("*.deb"):
        sure(
            "dpkg-deb", "--extract", str(package), str(folder / "kernel" if package.name.startswith("linux") else root)
        )
        package.unlink()
    for name in ("bin", "sbin", "lib", "lib64"):  # packages of before the merge beside those of after it
        if (root / name).exists() and not (root / name).is_symlink():
            shutil.copytree(root / name, root / "usr" / name, dirs_exist_ok=True, symlinks=True)
            shutil.rmtree(root / name)
        (root / name).symlink_to(f"usr/{name}")
    (root / "usr/bin/python3").unlink(missing_ok=True)
    (root / "usr/bin/python3").symlink_to(python)
    for part in ("usr/share", "usr/include"):
        shutil.rmtree(root / part, ignore_errors=True)
    (modules,) = (folder / "kernel/lib/modules").iterdir()
    _modules(modules, root / "usr/lib/modules" / modules.name, wanted)


def _modules(source: Path, target: Path, wanted: tuple[str, ...]) -> None:
    """Those that are needed, with what they need."""
    sure("depmod", "-b", str(source.parents[2]), source.name)
    needs = dict(line.split(":", 1) for line in (source / "modules.dep").read_text().splitlines())
    by_name = {Path(path).name.partition(".")[0].replace("-", "_"): path for path in needs}
    for path in {each for name in wanted if name in by_name for each in [by_name[name], *needs[by_name[name]].split()]}:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / path, target / path)
    for name in ("modules.builtin", "modules.order", "modules.builtin.modinfo"):
        shutil.copyfile(source / name, target / name)
    sure("depmod", "-b", str(target.parents[2].parent), target.name)
