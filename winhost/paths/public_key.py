"""Public keys of SSH: whether a line of `authorized_keys` is a key that sshd can take."""

import re
from binascii import Error, a2b_base64
from collections.abc import Iterator

from winhost.resources.windows.distros import PUBLIC_KEY

NEXT = "A new pair: ssh-keygen -t ed25519; the .pub file is the one to give"
_PRIVATE = re.compile(r"BEGIN [A-Z0-9 ]*PRIVATE KEY|PuTTY-User-Key-File")
_POINTS = {b"nistp256": 65, b"nistp384": 97, b"nistp521": 133}  # RFC 5656, uncompressed


def refuse_private(text: str) -> None:
    """Raises ValueError, which holds nothing of the text."""
    if _PRIVATE.search(text):
        raise ValueError(
            "this is a private key, and winhost wants the public one: the .pub file beside it. The private one may "
            "stand in your shell's history now; if others can read that, make another pair: ssh-keygen -t ed25519"
        )


def public_key(line: str) -> str:
    """The line unchanged. Raises ValueError for a key that sshd would ignore without a message."""
    refuse_private(line)
    if not re.fullmatch(PUBLIC_KEY, line):
        raise ValueError(
            "should be one line of a public key file, as ssh-ed25519 AAAA… name; the name has no blanks. " + NEXT
        )
    kind, data = line.split(" ")[:2]
    if wrong := _wrong(kind.encode(), data):
        raise ValueError(f"this is no whole {kind} key: {wrong}. Copy the line of the .pub file again. {NEXT}")
    return line


def _wrong(kind: bytes, data: str) -> str | None:
    """Say what is wrong with the data of a key. RFC 4253, 6.6: fields, each after its length; the first names
    the type.
    """
    try:
        name, *fields = _fields(a2b_base64(data, strict_mode=True))
    except (Error, ValueError):
        return "its text is cut off, or something is in it that does not belong there"
    if name != kind:
        return "its text is that of another type" if fields else "its text names no type"
    curve = kind.rpartition(b"-")[2]
    if kind == b"ssh-ed25519":
        whole = [len(field) for field in fields] == [32]
    elif kind == b"ssh-rsa":
        whole = len(fields) == 2 and all(fields)
    else:
        whole = len(fields) == 2 and (fields[0], len(fields[1])) == (curve, _POINTS.get(curve))
    return None if whole else "its text has not the parts of such a key"


def _fields(data: bytes) -> Iterator[bytes]:
    """Raises ValueError where lengths do not add up, or where there is nothing."""
    if not data:
        raise ValueError("nothing")
    while data:
        length = int.from_bytes(data[:4])
        if len(data) < 4 + length:
            raise ValueError("cut off")
        yield data[4 : 4 + length]
        data = data[4 + length :]
