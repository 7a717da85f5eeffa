"""Installation media with winhost's settings: the files that it adds to Canonical's image, with xorriso or on a FAT32
partition.

Secure Boot accepts Canonical's signatures, so shim and GRUB stay. Only the menu, which is not signed, is replaced.
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

from winhost.autoinstall.install_plan import FETCHED, SCRIPTS, format_install_file
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
# Without `autoinstall` the installer asks for confirmation; without `noprompt` it waits until the medium is removed.
# `subiquity.autoinstallpath` gives this file precedence over one of cloud-init, such as on a USB stick called CIDATA.
_MENU = """\
set timeout=3
menuentry "winhost: install Ubuntu on the disk that was named" {{
    set gfxpayload=keep
    linux /casper/vmlinuz autoinstall subiquity.autoinstallpath=/cdrom/autoinstall.yaml noprompt{words} ---
    initrd /casper/initrd
}}
"""
_FAT_FILE: Bytes = 4 * GiB - 1
_FAT_VOLUME: Bytes = 32 * GiB  # the largest that Windows formats


def menu(address: str | None = None) -> bytes:
    """Write grub.cfg. address: the network of the installer as the kernel's value of ip=…, None for DHCP."""
    return _MENU.format(words=f" ip={address}" if address else "").encode("ascii")


def script(name: str) -> str:
    """Return the constant text of a script that runs in the installer."""
    return join_modules(files(__package__).joinpath(part) for part in SCRIPTS[name])


def files_with_settings(
    document: Mapping[str, Any], order: Mapping[str, Any], address: str | None = None
) -> dict[str, bytes]:
    """Return the files to add for settings on the medium. autoinstall.yaml is secret."""
    return {
        "autoinstall.yaml": format_install_file(dict(document)).encode("ascii"),
        "winhost/guard.json": json.dumps(order, indent=1).encode("ascii"),
        "winhost/guard.py": script("guard.py").encode(),
        "winhost/boot.py": script("boot.py").encode(),
        MENU: menu(address),
    }


def files_without_settings(fetch: str, address: str | None = None, esp: str | None = None) -> dict[str, bytes]:
    """Return the files to add if the controller serves the settings. Only the token is secret; it is valid for one
    answer.
    """
    return {**files_before_settings(address, esp), FETCH: fetch.encode("ascii")}


def files_before_settings(address: str | None = None, esp: str | None = None) -> dict[str, bytes]:
    """Return the files to add before the controller has settings: constants, which install nothing. esp: the EFI system
    partition of the Windows that starts next if no settings arrive.
    """
    early = [FETCHING, *guard_commands(FETCHED)]
    # This file installs nothing: until the fetched one replaces it, it names no disk of any machine.
    storage = {"config": [{"type": "disk", "id": "disk-0", "serial": UNRESOLVED, "preserve": True}]}
    document: dict[str, Any] = {"version": 1, "early-commands": early, "storage": storage}
    back: dict[str, bytes] = {}
    if esp is not None:
        document["error-commands"] = [f"{PYTHON} /cdrom/winhost/boot.py windows"]
        back = {"winhost/guard.json": json.dumps({"windows_esp": esp}).encode("ascii")}
    return {
        **back,
        "autoinstall.yaml": format_install_file(document).encode("ascii"),
        **{f"winhost/{name}": script(name).encode() for name in SCRIPTS},
        MENU: menu(address),
    }


@dataclass(frozen=True)
class MediumFile:
    """A file of a medium. path: below its root, with slashes."""

    path: str
    size: Bytes
    sha256: str


def staged_files(image: Path, added: Mapping[str, bytes]) -> list[MediumFile]:
    """List the files of a FAT32 partition that replaces these media. Raises RefusedError (NotStaged), OSError."""
    found = {each.path: each for each in image_files(image)}
    for path, data in added.items():
        found[path] = MediumFile(path, len(data), hashlib.sha256(data).hexdigest())
    large = [each for each in found.values() if each.size > _FAT_FILE]
    if large:
        raise _staging_error(f"{visible(large[0].path)} has {size(large[0].size)}, more than a file on FAT32 can have")
    folded: dict[str, str] = {}
    for path in found:
        if folded.setdefault(path.casefold(), path) != path:
            raise _staging_error(f"{visible(path)} and {visible(folded[path.casefold()])} are one name on FAT32")
    missing = [path for path in (".disk/info", "casper/vmlinuz") if path not in found]
    if missing:
        raise _image_error(image, missing[0])
    return sorted(found.values(), key=lambda each: each.path)


def staging_size(listed: list[MediumFile]) -> Bytes:
    """Return the size of a partition for these files. Raises RefusedError (NotStaged)."""
    total = sum(each.size for each in listed)
    needed = max(-(-(total * 5 // 4 + 128 * MiB) // (256 * MiB)) * 256 * MiB, 4 * GiB)
    if needed > _FAT_VOLUME:
        raise _staging_error(f"the media need {size(needed)}, and Windows formats FAT32 up to {size(_FAT_VOLUME)}")
    return needed


def _staging_error(what: str) -> RefusedError:
    return RefusedError("NotStaged", what=what, hint="Use a USB stick, or virtual media of the machine's BMC")


def _image_error(image: Path, missing: str) -> RefusedError:
    return _staging_error(f"{visible(str(image))} has no {missing}: it is no installation image of Ubuntu Server")


def image_files(image: Path) -> Iterator[MediumFile]:
    """List the files of an ISO with Rock Ridge, without links, which FAT32 does not have and the installer does not
    need.
    """
    with _open_iso(image) as iso:
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
def _open_iso(image: Path) -> Iterator[Any]:
    import pycdlib

    iso = pycdlib.PyCdlib()
    iso.open(str(image))
    try:
        yield iso
    finally:
        iso.close()


def copy_out(image: Path, folder: Path, listed: list[MediumFile], but: Mapping[str, bytes]) -> None:
    """Copy the listed files of an ISO to a folder, except `but`. Raises OSError."""
    with _open_iso(image) as iso:
        for each in listed:
            if each.path not in but:
                (folder / each.path).parent.mkdir(parents=True, exist_ok=True)
                with (folder / each.path).open("xb") as file:
                    iso.get_file_from_iso_fp(file, rr_path=f"/{each.path}")


def read_from_image(image: Path, path: str) -> bytes:
    """Read a small file of an ISO, such as its shim. Raises RefusedError (NotStaged)."""
    from pycdlib.pycdlibexception import PyCdlibException

    with _open_iso(image) as iso:
        try:
            with iso.open_file_from_iso(rr_path=f"/{path}") as file:
                return bytes(file.read(16 * MiB))
        except PyCdlibException:
            raise _image_error(image, path) from None


_MAX_SECONDS = 1800


def remaster(image: Path, added: Mapping[str, bytes], out: Path) -> None:
    """Write an image with these files added; it is as secret as they are. Raises UsageError (NoXorriso), WinhostError
    (NotRemastered) and OSError.
    """
    program = shutil.which("xorriso")
    if program is None:
        hint = "Debian and Ubuntu: apt-get install xorriso. Or stage the media on the disk, which needs none"
        raise UsageError("NoXorriso", what="there is no xorriso on this computer, which makes the image", hint=hint)
    # The installer's own check of the medium reads the checksums, so those of changed files are replaced.
    added_sums = {f"./{path}": hashlib.md5(data, usedforsecurity=False).hexdigest() for path, data in added.items()}
    lines = read_from_image(image, SUMS).decode("utf-8", "replace").splitlines()
    sums = [line for line in lines if line.partition("  ")[2] not in added_sums]
    sums += [f"{sum_}  {path}" for path, sum_ in sorted(added_sums.items())]
    whole = {**added, SUMS: ("\n".join(sums) + "\n").encode()}
    with tempfile.TemporaryDirectory() as folder:
        # `stdio:` makes xorriso take paths below /dev for files, not for drives.
        arguments = [program, "-abort_on", "FAILURE", "-indev", f"stdio:{image}", "-outdev", f"stdio:{out}"]
        arguments += ["-boot_image", "any", "replay", "-overwrite", "on"]
        for number, (path, data) in enumerate(whole.items()):
            file = Path(folder) / str(number)
            write_whole(file, [data], mode=0o600)
            arguments += ["-map", str(file), f"/{path}"]
        os.close(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        _run(arguments, out)


def _run(arguments: list[str], out: Path) -> None:
    try:
        ran = subprocess.run(arguments, capture_output=True, timeout=_MAX_SECONDS)  # noqa: S603 - paths, and words of ours
        if not ran.returncode:
            return
        said = ran.stderr.decode("utf-8", "replace").splitlines()
        last = [line for line in said if "FAILURE" in line or "FATAL" in line]
        why = f"ended with {ran.returncode}: {visible(last[-1] if last else 'without a word')[:300]}"
    except subprocess.TimeoutExpired:
        why = f"did not end within {_MAX_SECONDS} s"
    except BaseException:
        out.unlink(missing_ok=True)  # a part of it may hold the settings
        raise
    out.unlink(missing_ok=True)
    hint = "Is there room for the image, and is the other one whole?"
    raise WinhostError("NotRemastered", what=f"xorriso {why}", hint=hint)
