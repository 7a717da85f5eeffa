"""An image as Ubuntu's for clouds is: UEFI, signed boot loader and kernel, cloud-init, sshd, a root that grows.

Made once by debootstrap from the release pocket of 24.04, which never changes. It differs from Canonical's in what the
emulation of a processor would take minutes for: an initramfs with few modules, and no timers. And its kernel takes it
that the clock ticks, as it does by itself under KVM: emulated on a busy machine it counts too few ticks and gives up.
"""

import os
import platform
import shutil
import subprocess
import urllib.request
from hashlib import sha256
from pathlib import Path

from tests.linux.debian import layers, sure
from tests.processes import PATIENCE_S

MIRROR, SUITE = "http://archive.ubuntu.com/ubuntu", "noble"
# Of the release pocket. Its hash was computed from the bytes, whose key has the fingerprint that Ubuntu publishes:
# F6EC B376 2474 EDA9 D21B 7022 8719 20D1 991B C93C.
KEYRING = "pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb"
KEYRING_SHA256 = "36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8"
PACKAGES = (
    *("cloud-init", "cloud-guest-utils", "dbus", "e2fsprogs", "gdisk", "grub-efi-amd64-signed", "initramfs-tools"),
    *("iproute2", "linux-image-virtual", "locales", "lsb-release", "mokutil", "netplan.io", "openssh-server"),
    *("shim-signed", "sudo", "systemd", "systemd-resolved", "systemd-sysv", "udev"),
)
TOOLS = ("debootstrap", "unshare", "mcopy", "mkfs.vfat", "mkfs.ext4", "sfdisk", "qemu-img", "dpkg-deb")
ROOT = "cloudimg-rootfs"
GRUB = f"""\
search.fs_label {ROOT} root
linux /boot/vmlinuz root=LABEL={ROOT} ro console=ttyS0 no_timer_check
initrd /boot/initrd.img
boot
"""
FSTAB = f"LABEL={ROOT} / ext4 errors=remount-ro 0 1\nLABEL=UEFI /boot/efi vfat umask=0077 0 1\n"
# The root is the last on the disk, so that it can grow.
PARTITIONS = f"""\
label: gpt
15 : start=2048, size={32 * 2048}, type=uefi, name=UEFI
1 : start={33 * 2048}, type=linux
"""
DISK_MIB, ROOT_AT_MIB, ROOT_MIB = 2048, 33, 2014
# It has no network beyond us, and would look for its mirrors for minutes.
NO_MIRRORS = {
    "etc/apt/sources.list": "",
    "etc/cloud/cloud.cfg.d/99-no-mirrors.cfg": "apt: {preserve_sources_list: true}\n",
}
NOT_NEEDED = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_reap.service",
    "motd-news.timer",
)
INSTALL = f"""\
set -e
export DEBIAN_FRONTEND=noninteractive LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc "$0/proc"
printf 'exit 101\\n' > "$0/usr/sbin/policy-rc.d"
chmod +x "$0/usr/sbin/policy-rc.d"
mkdir -p "$0/etc/initramfs-tools/conf.d"
printf 'MODULES=list\\n' > "$0/etc/initramfs-tools/conf.d/few"
chroot "$0" apt-get --quiet update
chroot "$0" apt-get --quiet --yes --no-install-recommends -o Dpkg::Options::=--force-unsafe-io install \\
  {" ".join(PACKAGES)}
printf '%s\\n' virtio_pci virtio_scsi sd_mod sr_mod virtio_net ext4 > "$0/etc/initramfs-tools/modules"
chroot "$0" update-initramfs -u -k all
rm "$0/usr/sbin/policy-rc.d"
"""


class NoImage(Exception):
    """Why this machine cannot make it."""


def make_image(folder: Path) -> Path:
    """The image, qcow2 with compressed clusters; what lies in the folder already is taken where it was made alike."""
    image, complete = folder / "disk.qcow2", folder / "complete"
    recipe = "\n".join((INSTALL, GRUB, FSTAB, PARTITIONS, *NO_MIRRORS.values(), *NOT_NEEDED))
    if complete.exists() and complete.read_text() == recipe:
        return image
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    if platform.system() != "Linux" or os.geteuid() != 0 or lacking:
        raise NoImage(f"it takes root and {', '.join(lacking or TOOLS)}")
    shutil.rmtree(folder, ignore_errors=True)
    making = folder / "making"
    making.mkdir(parents=True)
    root = making / "root"
    with layers(making / "nothing", making / "written", root):  # where no package waits for a disk
        _install(root, making)
        _finish(root)
        _write(root, making, image)
    shutil.rmtree(making)
    complete.write_text(recipe)
    return image


def _install(root: Path, folder: Path) -> None:
    command = ["debootstrap", "--variant=minbase", f"--keyring={_keyring(folder)}", SUITE, str(root), MIRROR]
    # Debian's debootstrap may be older than this Ubuntu; all of them have one script.
    for words in (
        [*command, "/usr/share/debootstrap/scripts/gutsy"],
        ["unshare", "--mount", "sh", "-c", INSTALL, root],
    ):
        done = subprocess.run(words, capture_output=True, text=True, timeout=1500)
        if done.returncode:
            raise NoImage(f"{words[0]}: {done.stdout[-300:]}{done.stderr[-300:]}")


def _keyring(folder: Path) -> Path:
    with urllib.request.urlopen(f"{MIRROR}/{KEYRING}", timeout=PATIENCE_S) as answer:
        package = answer.read()
    if sha256(package).hexdigest() != KEYRING_SHA256:
        raise NoImage("Ubuntu's keyring is not the one that is known")
    (folder / "keyring.deb").write_bytes(package)
    sure("dpkg-deb", "--extract", str(folder / "keyring.deb"), str(folder / "keyring"))
    return folder / "keyring/usr/share/keyrings/ubuntu-archive-keyring.gpg"


def _finish(root: Path) -> None:
    """As an image is: nobody's keys, no id, and nothing that a first start would have to do again."""
    for pattern in ("etc/ssh/ssh_host_*", "var/cache/apt/archives/*.deb", "var/lib/apt/lists/*Packages"):
        for path in root.glob(pattern):
            path.unlink()
    (root / "etc/machine-id").write_text("")
    for path, text in {"etc/fstab": FSTAB, **NO_MIRRORS}.items():
        (root / path).write_text(text)
    (root / "boot/efi").mkdir(exist_ok=True)
    for unit in NOT_NEEDED:
        (root / "etc/systemd/system" / unit).symlink_to("/dev/null")
    for stamp in ("etc/.updated", "var/.updated"):
        (root / stamp).touch()


def _write(root: Path, folder: Path, image: Path) -> None:
    """A disk without a loop device: each file system is written at its place in the file."""
    loader, signed = folder / "esp/EFI/BOOT", root / "usr/lib"
    loader.mkdir(parents=True)
    shutil.copyfile(signed / "shim/shimx64.efi.signed.latest", loader / "BOOTX64.EFI")
    shutil.copyfile(signed / "grub/x86_64-efi-signed/grubx64.efi.signed", loader / "grubx64.efi")
    (folder / "esp/EFI/ubuntu").mkdir()
    (folder / "esp/EFI/ubuntu/grub.cfg").write_text(GRUB)
    esp, raw = folder / "esp.img", folder / "disk.raw"
    for path, size in ((esp, 32), (raw, DISK_MIB)):
        with path.open("wb") as file:
            file.truncate(size << 20)
    subprocess.run(["sfdisk", "--quiet", raw], input=PARTITIONS, text=True, check=True, timeout=PATIENCE_S)
    sure("mkfs.vfat", "-n", "UEFI", str(esp))
    sure("mcopy", "-s", "-i", str(esp), str(folder / "esp/EFI"), "::")
    with raw.open("r+b") as file:
        file.seek(1 << 20)
        file.write(esp.read_bytes())
    options = f"offset={ROOT_AT_MIB << 20},root_owner=0:0"
    sure("mkfs.ext4", "-q", "-F", "-L", ROOT, "-d", str(root), "-E", options, str(raw), f"{ROOT_MIB}M")
    sure("qemu-img", "convert", "-c", "-O", "qcow2", str(raw), str(image))
    raw.unlink()
