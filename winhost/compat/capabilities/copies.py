"""Measured rates of copies between GPU, host memory and files: orders of magnitude, not promises.

Measured on passed-through H200 GPUs (PCI Express 5.0 x16) in a Linux VM with driver 580: evidence `copies-measured`.
"""

from winhost.model.units import Bytes

PINNED = 55.6  # GB/s from host memory to the GPU
PAGEABLE = 10.8
PINNED_DOWN = 55.5  # GB/s from the GPU to host memory
PAGEABLE_DOWN = 20.2
FROM_DISK = 2.4  # GB/s from a file to the GPU, with the page cache dropped before
FROM_CACHE = 10.5
GB: Bytes = 10**9


def seconds(bytes_: Bytes, rate: float) -> str:
    """`0.9 s`: how long a copy takes at `rate` GB/s."""
    return f"{bytes_ / GB / rate:.1f} s"
