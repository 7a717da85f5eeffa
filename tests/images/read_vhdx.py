"""A reader of VHDX, written independently from [MS-VHDX] for tests: it takes nothing on trust from the writer."""

import struct
from uuid import UUID

MIB = 1 << 20
BAT, METADATA = UUID("2DC27766-F623-4200-9D64-115E9BFD4A08"), UUID("8B7CA206-4790-4B9A-B8FE-575F050F886E")
FILE_PARAMETERS = UUID("CAA16737-FA36-4D43-B3B6-33F0AA44E76B")
DISK_SIZE = UUID("2FA54224-CD1B-4876-B211-5DBED83BF4B8")
DISK_ID = UUID("BECA12AB-B2E6-4523-93EF-C309E000C746")
LOGICAL_SECTOR = UUID("8141BF1D-A96F-4709-BA47-F233A8FAAB5F")
PHYSICAL_SECTOR = UUID("CDA348C7-445D-4471-9CC9-E9885251C556")


def crc(data: bytes) -> int:
    """Bit by bit."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ 0x82F63B78 * (value & 1)
    return value ^ 0xFFFFFFFF


class ReadVhdx:
    """All of a file, checked as it is read. blocks: how many are allocated."""

    def __init__(self, data: bytes, *, check_sums: bool = True) -> None:
        assert data[:8] == b"vhdxfile"
        assert len(data) % MIB == 0
        assert data[8 : 8 + 14].decode("utf-16-le") == "winhost"
        self.data = data
        headers = [data[at : at + 4096] for at in (64 << 10, 128 << 10)]
        tables = [data[at : at + (64 << 10)] for at in (192 << 10, 256 << 10)]
        assert tables[0] == tables[1]
        for part in (*headers, tables[0]) if check_sums else ():
            assert struct.unpack_from("<I", part, 4)[0] == crc(part[:4] + bytes(4) + part[8:])
        self._read_headers(headers)
        regions = self._regions(tables[0])
        assert set(regions) == {BAT, METADATA}
        self._read_metadata(*regions[METADATA])
        self._read_bat(*regions[BAT])

    def _read_headers(self, headers: list[bytes]) -> None:
        sequences = []
        for header in headers:
            assert header[:4] == b"head"
            sequence, file_id, data_id, log_id = struct.unpack_from("<Q16s16s16s", header, 8)
            log_version, version, log_length, log_at = struct.unpack_from("<HHIQ", header, 64)
            assert (log_id, log_version, version, log_length, log_at) == (bytes(16), 0, 1, MIB, MIB)
            assert bytes(16) not in (file_id, data_id)
            sequences.append(sequence)
        assert sequences[0] != sequences[1]

    def _regions(self, table: bytes) -> dict[UUID, tuple[int, int]]:
        assert table[:4] == b"regi"
        (count,) = struct.unpack_from("<I", table, 8)
        found = {}
        for at in range(16, 16 + 32 * count, 32):
            name, begin, length, required = struct.unpack_from("<16sQII", table, at)
            assert begin % MIB == length % MIB == 0
            assert begin >= 2 * MIB
            assert required == 1
            found[UUID(bytes_le=name)] = begin, length
        return found

    def _read_metadata(self, at: int, length: int) -> None:
        region = self.data[at : at + length]
        assert region[:8] == b"metadata"
        (count,) = struct.unpack_from("<H", region, 10)
        items, flags = {}, {}
        for entry in range(32, 32 + 32 * count, 32):
            name, begin, size, flag, _ = struct.unpack_from("<16sIIII", region, entry)
            assert begin >= 64 << 10
            items[UUID(bytes_le=name)], flags[UUID(bytes_le=name)] = region[begin : begin + size], flag
        assert flags == {FILE_PARAMETERS: 4, **dict.fromkeys((DISK_SIZE, DISK_ID, LOGICAL_SECTOR, PHYSICAL_SECTOR), 6)}
        assert struct.unpack("<II", items[FILE_PARAMETERS]) == (MIB, 0)
        assert struct.unpack("<I", items[LOGICAL_SECTOR]) == (512,)
        assert struct.unpack("<I", items[PHYSICAL_SECTOR]) == (4096,)
        (self.size,) = struct.unpack("<Q", items[DISK_SIZE])
        self.disk_id = UUID(bytes_le=items[DISK_ID])

    def _read_bat(self, at: int, length: int) -> None:
        ratio = (1 << 23) * 512 // MIB
        blocks = -(-self.size // MIB)
        count = blocks + (blocks - 1) // ratio
        assert length >= 8 * count
        self.payload: dict[int, int] = {}
        for index, entry in enumerate(struct.unpack_from(f"<{count}Q", self.data, at)):
            chunk, inside = divmod(index, ratio + 1)
            if inside == ratio:
                assert entry == 0, "a dynamic disk has no sector bitmaps"
            elif entry != 2:  # PAYLOAD_BLOCK_ZERO, whose offset is reserved
                assert entry & 0xFFFFF == 6, "PAYLOAD_BLOCK_FULLY_PRESENT"
                self.payload[chunk * ratio + inside] = entry >> 20 << 20
        places = sorted(self.payload.values())
        assert len(set(places)) == len(places)
        assert not places or (places[0] >= at + length and places[-1] + MIB == len(self.data))

    def disk(self) -> bytes:
        found = bytearray(-(-self.size // MIB) * MIB)
        for block, at in self.payload.items():
            found[block * MIB : (block + 1) * MIB] = self.data[at : at + MIB]
        assert not any(found[self.size :])
        return bytes(found[: self.size])
