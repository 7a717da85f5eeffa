"""qcow2 files made by hand for tests: every field can be set to what no program would write."""

import struct
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

HEADER = (
    *(("magic", "4s"), ("version", "I"), ("backing_at", "Q"), ("backing_size", "I"), ("cluster_bits", "I")),
    *(("size", "Q"), ("encryption", "I"), ("l1_entries", "I"), ("l1_at", "Q"), ("refcounts_at", "Q")),
    *(("refcounts_clusters", "I"), ("snapshots", "I"), ("snapshots_at", "Q")),
    *(("incompatible", "Q"), ("compatible", "Q"), ("autoclear", "Q"), ("refcount_order", "I"), ("header_length", "I")),
    ("compression", "B"),
)
V2_FIELDS = 13


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-12)
    return packer.compress(data) + packer.flush()


@dataclass
class Made:
    """A file, and where in it what is."""

    data: bytearray
    l1_at: int
    l2_at: int
    offsets: dict[str, tuple[int, str]] = field(default_factory=dict)

    def set(self, name: str, value: int) -> None:
        """A field of the header, or `l1`, `l2`, `refcount`: the first entry of that table."""
        tables = {"l1": self.l1_at, "l2": self.l2_at, "refcount": self.offsets["refcounts"][0]}
        at, form = (tables[name], "Q") if name in tables else self.offsets[name]
        struct.pack_into(f">{form}", self.data, at, value)


def made(
    disk: bytes,
    *,
    cluster_bits: int = 9,
    version: int = 3,
    compressed: Collection[int] = (),
    zero_flagged: Collection[int] = (),
    pack: Callable[[bytes], bytes] = deflated,
    compression: int = 0,
) -> Made:
    """An image of this disk. compressed: clusters, by number; zero_flagged: those that say it."""
    cluster = 1 << cluster_bits
    clusters = [disk[at : at + cluster] for at in range(0, len(disk), cluster)]
    per_table = cluster // 8
    l1_entries = -(-len(clusters) // per_table)
    l1_at = 3 * cluster
    l2_at = l1_at + -(-8 * l1_entries // cluster) * cluster
    data = bytearray(l2_at + l1_entries * cluster)
    for number, content in enumerate(clusters):
        entry = 1 if number in zero_flagged else 0
        if number in compressed:
            entry = _append_compressed(data, pack(content.ljust(cluster, b"\0")), cluster_bits)
        elif any(content):
            data += bytes(-len(data) % cluster)
            entry = len(data) | 1 << 63
            data += content.ljust(cluster, b"\0")
        struct.pack_into(">Q", data, l2_at + 8 * number, entry)
    for table in range(l1_entries):
        struct.pack_into(">Q", data, l1_at + 8 * table, l2_at + table * cluster | 1 << 63)
    struct.pack_into(">Q", data, cluster, 2 * cluster)
    values = (
        *(b"QFI\xfb", version, 0, 0, cluster_bits, len(disk), 0, l1_entries, l1_at, cluster, 1, 0, 0),
        *(8 if compression else 0, 0, 0, 4, 112, compression),
    )
    offsets, at = {"refcounts": (cluster, "Q")}, 0
    for (name, form), value in list(zip(HEADER, values, strict=True))[: None if version == 3 else V2_FIELDS]:
        struct.pack_into(f">{form}", data, at, value)
        offsets[name] = at, form
        at += struct.calcsize(f">{form}")
    return Made(data, l1_at, l2_at, offsets)


def _append_compressed(data: bytearray, packed: bytes, cluster_bits: int) -> int:
    at = len(data)
    data += packed
    sectors = (at + len(packed) - 1) // 512 - at // 512
    return 1 << 62 | sectors << 62 - (cluster_bits - 8) | at
