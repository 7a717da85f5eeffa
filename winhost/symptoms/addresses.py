"""What Start-VM says of a VM whose MMIO window ends too high: numbers alone, for Windows speaks many languages."""

import re
from itertools import pairwise

_NUMBERS = re.compile(r"0x([0-9a-f]{9,16})(?![0-9a-zA-Z])", re.IGNORECASE)


def address_bits(message: str) -> int | None:
    """The host's physical address bits, where the message names the end of a region and a lower power of two, below
    which it has to be; else None.
    """
    numbers = [int(found, 16) for found in _NUMBERS.findall(message)]
    for end, limit in pairwise(numbers):
        if limit <= end and limit & (limit - 1) == 0:
            return limit.bit_length() - 1
    return None
