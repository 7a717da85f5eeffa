"""A small image with the shape of Ubuntu Server's: its files, its loader on a small ESP, its own sums."""

import hashlib
import struct
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.hazmat.primitives.serialization.pkcs7 import PKCS7Options, PKCS7SignatureBuilder

from tests.processes import PATIENCE_S

FILES = {
    ".disk/info": b'Ubuntu-Server 24.04.4 LTS "Noble Numbat" - Release amd64 (20260210)\n',
    "casper/vmlinuz": b"kernel" * 1000,
    "casper/initrd": b"initrd" * 1000,
    "casper/ubuntu-server-minimal.squashfs": bytes(range(256)) * 4000,
    "boot/grub/grub.cfg": b'menuentry "Try or Install Ubuntu Server" {}\n',
    "EFI/boot/grubx64.efi": b"grub" * 500,
}


def signed_program(*authorities: str) -> bytes:
    """A PE32+ of nothing, with one signature for each authority, as firmware would find them."""
    at, table = 512, b""
    for name in authorities:
        blob = _signature(name)
        table += struct.pack("<IHH", len(blob) + 8, 0x200, 2) + blob + bytes(-len(blob) % 8)
    head = bytearray(at)
    head[:2], head[60:64] = b"MZ", struct.pack("<I", 64)
    head[64:68] = b"PE\0\0"
    struct.pack_into("<H", head, 88, 0x20B)
    struct.pack_into("<II", head, 88 + 144, at if table else 0, len(table))
    return bytes(head) + table


def _signature(authority: str) -> bytes:
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    begin, end = now - timedelta(days=1), now + timedelta(days=1)
    certificate = x509.CertificateBuilder(name(authority), name("a signer"), key.public_key(), 1, begin, end)
    signed = certificate.sign(key, hashes.SHA256())
    builder = PKCS7SignatureBuilder().set_data(b"x").add_signer(signed, key, hashes.SHA256())
    return builder.sign(Encoding.DER, [PKCS7Options.Binary])


def made_image(folder: Path, out: Path, shim: bytes) -> None:
    """With xorriso, as such images are: an ESP in the image that El Torito names."""
    tree = folder / "tree"
    whole = {**FILES, "EFI/boot/bootx64.efi": shim}
    sums = "".join(f"{hashlib.md5(data).hexdigest()}  ./{path}\n" for path, data in sorted(whole.items()))
    for path, data in (whole | {"md5sum.txt": sums.encode()}).items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(data)
    (tree / "ubuntu").symlink_to(".")
    esp = folder / "efi.img"
    esp.write_bytes(b"ESP".ljust(1 << 20, b"\0"))
    words = ["xorriso", "-as", "mkisofs", "-r", "-J", "-V", "Ubuntu-Server 24.04.4 LTS amd64", "-o", str(out)]
    words += ["-append_partition", "2", "0xef", str(esp), "-appended_part_as_gpt", "-partition_offset", "16"]
    words += ["-eltorito-alt-boot", "-e", "--interval:appended_partition_2:all::", "-no-emul-boot", str(tree)]
    subprocess.run(words, check=True, capture_output=True, timeout=PATIENCE_S)
