"""Installation media with our settings: what winhost adds to Canonical's image, by xorriso or on a FAT32 partition.

Secure Boot accepts Canonical's signatures, so its loader, shim and GRUB stay. Only the menu, which is not signed,
becomes ours.
"""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from winhost.autoinstall.install_plan import FETCHED, SCRIPTS, written_install
from winhost.autoinstall.installer_storage import FETCHING, PYTHON, UNRESOLVED, guard_commands
from winhost.core.dataclass import dataclass
from winhost.model.errors import RefusedError, UsageError, WinhostError, visible
from winhost.model.files import write_whole
from winhost.model.one_text import join_modules
from winhost.model.units import Bytes, GiB, MiB, size

MENU = "boot/grub/grub.cfg"
SHIM = "EFI/boot/bootx64.efi"
SUMS = "md5sum.txt"
FETCH = "winhost/fetch.json"
# Without `autoinstall` the installer asks; without `noprompt` it waits for somebody to take the medium out. With
# `subiquity.autoinstallpath` our file takes precedence over one of cloud-init, which a stick called CIDATA could bring.
_MENU = """\
set timeout=3
menuentry "winhost: install Ubuntu on the disk that was named" {{
    set gfxpayload=keep
    linux /casper/vmlinuz autoinstall subiquity.autoinstallpath=/cdrom/autoinstall.yaml noprompt{words} ---
    initrd /casper/initrd
}}
"""
_FAT_FILE: Bytes = 4 * GiB - 1
_FAT_VOLUME: Bytes = 32 * GiB  # that Windows formats


def menu(address: str | None = None) -> bytes:
    """grub.cfg. address: of the installer's own network, as the kernel takes it (ip=…), where there is no DHCP."""
    return _MENU.format(words=f" ip={address}" if address else "").encode("ascii")


def script(name: str) -> str:
    """The constant text of a script that runs in the installer."""
    return join_modules(files(__package__).joinpath(part) for part in SCRIPTS[name])


def with_settings(
    document: Mapping[str, Any], order: Mapping[str, Any], address: str | None = None
) -> dict[str, bytes]:
    """The files to add for settings that lie on the medium. autoinstall.yaml is secret."""
    return {
        "autoinstall.yaml": written_install(dict(document)).encode("ascii"),
        "winhost/guard.json": json.dumps(order, indent=1).encode("ascii"),
        "winhost/guard.py": script("guard.py").encode(),
        "winhost/boot.py": script("boot.py").encode(),
        MENU: menu(address),
    }


def without_settings(fetch: str, address: str | None = None, esp: str | None = None) -> dict[str, bytes]:
    """The files to add if the controller hands out the settings. Only the token, for one answer, is secret."""
    return {**before_settings(address, esp), FETCH: fetch.encode("ascii")}


def before_settings(address: str | None = None, esp: str | None = None) -> dict[str, bytes]:
    """The files to add before the controller has settings: constants, which install nothing. esp: that of the Windows
    that starts next if no settings come.
    """
    early = [FETCHING, *guard_commands(FETCHED)]
    # Nothing is installed by this file: without the one that is fetched, it names no disk of any machine.
    storage = {"config": [{"type": "disk", "id": "disk-0", "serial": UNRESOLVED, "preserve": True}]}
    document: dict[str, Any] = {"version": 1, "early-commands": early, "storage": storage}
    back: dict[str, bytes] = {}
    if esp is not None:
        document["error-commands"] = [f"{PYTHON} /cdrom/winhost/boot.py windows"]
        back = {"winhost/guard.json": json.dumps({"windows_esp": esp}).encode("ascii")}
    return {
        **back,
        "autoinstall.yaml": written_install(document).encode("ascii"),
        **{f"winhost/{name}": script(name).encode() for name in SCRIPTS},
        MENU: menu(address),
    }


@dataclass(frozen=True)
class MediumFile:
    """A file of a medium. path: below its root, with slashes."""

    path: str
    size: Bytes
    sha256: str


def staged(image: Path, added: Mapping[str, bytes]) -> list[MediumFile]:
    """The files of a FAT32 partition that stands in for these media. Raises RefusedError (NotStaged), OSError."""
    found = {each.path: each for each in image_files(image)}
    for path, data in added.items():
        found[path] = MediumFile(path, len(data), hashlib.sha256(data).hexdigest())
    large = [each for each in found.values() if each.size > _FAT_FILE]
    if large:
        raise _not_staged(f"{visible(large[0].path)} has {size(large[0].size)}, more than a file on FAT32 can have")
    folded: dict[str, str] = {}
    for path in found:
        if folded.setdefault(path.casefold(), path) != path:
            raise _not_staged(f"{visible(path)} and {visible(folded[path.casefold()])} are one name on FAT32")
    missing = [path for path in (".disk/info", "casper/vmlinuz") if path not in found]
    if missing:
        raise _no_installer(image, missing[0])
    return sorted(found.values(), key=lambda each: each.path)


def staging_size(listed: list[MediumFile]) -> Bytes:
    """The size of a partition for these files. Raises RefusedError (NotStaged)."""
    total = sum(each.size for each in listed)
    wanted = max(-(-(total * 5 // 4 + 128 * MiB) // (256 * MiB)) * 256 * MiB, 4 * GiB)
    if wanted > _FAT_VOLUME:
        raise _not_staged(f"the media need {size(wanted)}, and Windows formats FAT32 up to {size(_FAT_VOLUME)}")
    return wanted


def _not_staged(what: str) -> RefusedError:
    return RefusedError("NotStaged", what=what, hint="Use a USB stick, or virtual media of the machine's BMC")


def _no_installer(image: Path, lacks: str) -> RefusedError:
    return _not_staged(f"{visible(str(image))} has no {lacks}: it is no installation image of Ubuntu Server")


def image_files(image: Path) -> Iterator[MediumFile]:
    """List an ISO with Rock Ridge, without links: FAT32 has none, and the installer does without them."""
    with _opened(image) as iso:
        for folder, _, names in iso.walk(rr_path="/"):
            for name in names:
                path = f"{folder.rstrip('/')}/{name}"
                record: Any = iso.get_record(rr_path=path)
                if record.rock_ridge.is_symlink() or record.inode is None:  # the boot catalogue has no file
                    continue
                total, hashed = 0, hashlib.sha256()
                with iso.open_file_from_iso(rr_path=path) as file:
                    while piece := file.read(MiB):
                        hashed.update(piece)
                        total += len(piece)
                yield MediumFile(path.removeprefix("/"), total, hashed.hexdigest())


@contextmanager
def _opened(image: Path) -> Iterator[Any]:
    import pycdlib

    iso = pycdlib.PyCdlib()
    iso.open(str(image))
    try:
        yield iso
    finally:
        iso.close()


def copy_out(image: Path, folder: Path, listed: list[MediumFile], but: Mapping[str, bytes]) -> None:
    """Copy the listed files of an ISO to a folder, except `but`. Raises OSError."""
    with _opened(image) as iso:
        for each in listed:
            if each.path not in but:
                (folder / each.path).parent.mkdir(parents=True, exist_ok=True)
                with (folder / each.path).open("xb") as file:
                    iso.get_file_from_iso_fp(file, rr_path=f"/{each.path}")


def read_from_image(image: Path, path: str) -> bytes:
    """Read a small file of an ISO, such as its shim. Raises RefusedError (NotStaged)."""
    from pycdlib.pycdlibexception import PyCdlibException

    with _opened(image) as iso:
        try:
            with iso.open_file_from_iso(rr_path=f"/{path}") as file:
                return bytes(file.read(16 * MiB))
        except PyCdlibException:
            raise _no_installer(image, path) from None


_LONGEST_S = 1800


def remastered(image: Path, added: Mapping[str, bytes], out: Path) -> None:
    """Write an image with these files added; it is as secret as they are. Raises UsageError (NoXorriso), WinhostError
    (NotRemastered) and OSError.
    """
    program = shutil.which("xorriso")
    if program is None:
        hint = "Debian and Ubuntu: apt-get install xorriso. Or stage the media on the disk, which needs none"
        raise UsageError("NoXorriso", what="there is no xorriso on this computer, which makes the image", hint=hint)
    # The installer's own check of the medium reads the checksums, so those of the files that change are replaced.
    ours = {f"./{path}": hashlib.md5(data, usedforsecurity=False).hexdigest() for path, data in added.items()}
    lines = read_from_image(image, SUMS).decode("utf-8", "replace").splitlines()
    sums = [line for line in lines if line.partition("  ")[2] not in ours]
    sums += [f"{sum_}  {path}" for path, sum_ in sorted(ours.items())]
    whole = {**added, SUMS: ("\n".join(sums) + "\n").encode()}
    with tempfile.TemporaryDirectory() as folder:
        # As files, also below /dev, where it would take them for drives.
        words = [program, "-abort_on", "FAILURE", "-indev", f"stdio:{image}", "-outdev", f"stdio:{out}"]
        words += ["-boot_image", "any", "replay", "-overwrite", "on"]
        for number, (path, data) in enumerate(whole.items()):
            file = Path(folder) / str(number)
            write_whole(file, [data], mode=0o600)
            words += ["-map", str(file), f"/{path}"]
        os.close(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        _run(words, out)


def _run(words: list[str], out: Path) -> None:
    try:
        ran = subprocess.run(words, capture_output=True, timeout=_LONGEST_S)  # noqa: S603 - paths, and words of ours
        if not ran.returncode:
            return
        said = ran.stderr.decode("utf-8", "replace").splitlines()
        last = [line for line in said if "FAILURE" in line or "FATAL" in line]
        why = f"ended with {ran.returncode}: {visible(last[-1] if last else 'without a word')[:300]}"
    except subprocess.TimeoutExpired:
        why = f"did not end within {_LONGEST_S} s"
    except BaseException:
        out.unlink(missing_ok=True)  # a part of it may hold the settings
        raise
    out.unlink(missing_ok=True)
    hint = "Is there room for the image, and is the other one whole?"
    raise WinhostError("NotRemastered", what=f"xorriso {why}", hint=hint)
