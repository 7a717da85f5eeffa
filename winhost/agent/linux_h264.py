# Part of the probe: a picture as H.264 whose samples are known, so that a decoder's result can be compared.
from __future__ import annotations

import random

SIDE = 128  # of the picture: NVDEC takes no less than 48 x 16
_PCM = 25  # mb_type of a macroblock with uncompressed samples


class Bits:
    """A writer of bits, in the order and with the codes of H.264 (7.2, 9.1)."""

    def __init__(self) -> None:
        self.text = ""

    def put(self, value: int, width: int) -> None:
        self.text += format(value, f"0{width}b")

    def exp(self, *values: int) -> None:
        """Write each value as ue(v)."""
        for value in values:
            code = format(value + 1, "b")
            self.text += "0" * (len(code) - 1) + code

    def align(self, first: str = "0") -> None:
        """Fill up to a whole byte. first: the first bit that is added."""
        if first == "1":
            self.text += first
        self.text += "0" * (-len(self.text) % 8)

    def packed(self) -> bytes:
        return int(self.text, 2).to_bytes(len(self.text) // 8, "big")


def unit(kind: int, payload: bytes) -> bytes:
    """Return a NAL unit in the byte stream format, escaped so that no part of it looks like a start code."""
    body = bytearray()
    for byte in payload:
        if byte <= 3 and body[-2:] == b"\0\0":
            body.append(3)
        body.append(byte)
    return b"\0\0\0\1" + bytes([kind]) + bytes(body)


def picture() -> tuple[bytes, bytes]:
    """Return the stream, and the picture as NV12: luma, then pairs of chroma."""
    draw, blocks = random.Random(17), SIDE // 16  # noqa: S311 - a test picture
    head = Bits()
    head.put(66, 8)  # baseline
    head.put(0xC0, 8)
    head.put(10, 8)  # level 1
    head.exp(0, 0, 2, 1)
    head.put(0, 1)
    head.exp(blocks - 1, blocks - 1)
    head.put(0b1100, 4)  # frames alone; no cropping, no more
    head.align("1")
    parameters = Bits()
    parameters.exp(0, 0)
    parameters.put(0, 2)
    parameters.exp(0, 0, 0)
    parameters.put(0, 3)
    parameters.exp(0, 0, 0)
    parameters.put(0b100, 3)  # slices say whether edges are filtered
    parameters.align("1")
    body = Bits()
    body.exp(0, 7, 0)  # all macroblocks, intra
    body.put(0, 4)
    body.exp(0)
    body.put(0, 2)
    body.exp(0, 1)  # no filter
    luma = [bytearray(SIDE) for _ in range(SIDE)]
    chroma = [bytearray(SIDE) for _ in range(SIDE // 2)]
    slice_data = bytearray()
    for block in range(blocks * blocks):
        body.exp(_PCM)
        body.align()
        slice_data += body.packed()
        body = Bits()
        down, right = block // blocks, block % blocks
        for row in range(16):
            samples = bytes(draw.randrange(16, 236) for _ in range(16))
            luma[down * 16 + row][right * 16 : right * 16 + 16] = samples
            slice_data += samples
        for plane in (0, 1):
            for row in range(8):
                samples = bytes(draw.randrange(16, 240) for _ in range(8))
                chroma[down * 8 + row][right * 16 + plane : right * 16 + 16 : 2] = samples
                slice_data += samples
    body.align("1")
    slice_data += body.packed()
    stream = unit(0x67, head.packed()) + unit(0x68, parameters.packed()) + unit(0x65, bytes(slice_data))
    return stream, b"".join(map(bytes, luma)) + b"".join(map(bytes, chroma))
