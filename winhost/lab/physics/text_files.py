"""Files of a simulated Windows that are text, by the mark at their beginning, as WSL and the scripts take them."""

import base64

from winhost.lab.physics.windows_errors import bad_request, own_error

_MARKS = {"utf-16le": b"\xff\xfe", "utf-8-bom": b"\xef\xbb\xbf", "utf-8": b""}


def decoded(content: bytes) -> tuple[str, str]:
    """The text and its encoding, by its mark. Raises CmdletError."""
    encoding = next(name for name, mark in _MARKS.items() if content.startswith(mark))
    try:
        return content[len(_MARKS[encoding]) :].decode(encoding.removesuffix("-bom")), encoding
    except UnicodeDecodeError:
        raise own_error("NotDecodable", "InvalidData", f"These bytes are not {encoding}.") from None


def encoded(text: str, encoding: str) -> bytes:
    """Raises CmdletError, also for an encoding that Windows writes no text in."""
    try:
        return _MARKS[encoding] + text.encode(encoding.removesuffix("-bom"))
    except (KeyError, UnicodeEncodeError):
        raise bad_request(f"This text cannot be written as {encoding}.") from None


def on_wire(content: bytes) -> str:
    """As files travel between a script and its host."""
    return base64.b64encode(content).decode()
