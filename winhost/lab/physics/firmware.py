"""The firmware of a simulated host: its variables, boot entries, and Secure Boot."""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

from pydantic import Field

from winhost.core.answers import Json, Record
from winhost.lab.physics.disk_layouts import make_guid
from winhost.lab.physics.lab_section import part_physics
from winhost.lab.physics.parts import Change, Host, ManagedKind, Part, SetCall, StoredRecord, as_cmdlet
from winhost.lab.physics.windows_errors import agent_error, refuse_if
from winhost.model.once import once
from winhost.model.written import Closed

GLOBAL = "{8be4df61-93ca-11d2-aa0d-00e098032b8c}"
WINDOWS_LOADER = "\\EFI\\Microsoft\\Boot\\bootmgfw.efi"
_TRUSTED = (
    "Microsoft Windows Production PCA 2011",
    "Microsoft Corporation UEFI CA 2011",
    "Windows UEFI CA 2023",
    "Microsoft UEFI CA 2023",
)


_BCD_TITLES = {
    "en": ("Firmware Boot Manager", "Windows Boot Manager", "identifier"),
    "de": ("Firmware-Start-Manager", "Windows-Start-Manager", "Bezeichner"),
}
_ELEMENT_NOT_FOUND = (1, "An error occurred while attempting to delete the specified data element.\nElement not found.")


@part_physics("firmware")
class FirmwarePhysics(Closed):
    """The physics of the firmware."""

    forgets: bool = Field(default=False, description="it accepts variables, but does not store them")


class FirmwarePart(Part):
    """The firmware of one host. By default it boots Windows, and Secure Boot is on."""

    administrator_resources = ("FirmwareBoot", "OwnBootEntry", "SecureBoot")

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.physics = FirmwarePhysics.model_validate(host.lab.found.get("firmware", {}))
        host.programs["bcdedit.exe"] = self.bcdedit
        host.registry_keys.append(self._registry_keys)
        # Properties that could not be read get their defaults.
        self._recorded = {
            name: {each: value for each, value in records[0].state.items() if not isinstance(value, Mapping)}
            for name in self.administrator_resources
            if (records := host.initial.get(name))
        }
        self._boot: dict[str, Json] | None = None
        self._pending_entries: dict[str, Mapping[str, Json]] = {}  # entries that were written and are in no order yet
        host.listing_views["FirmwareBoot"] = self._list_without_boot

    def _registry_keys(self) -> list[tuple[str, Mapping[str, Json]]]:
        return [("SYSTEM\\CurrentControlSet\\Control", {"PEFirmwareType": {"bios": 1, "uefi": 2}[self.kind]})]

    def _list_without_boot(self, record: Record) -> Record:
        """Return the record for a listing, without the boot variables, which take a C# compiler to read."""
        unread_properties = {name: {"unknown": _UNREAD_ERROR.as_json()} for name in _NO_BOOT_STATE}
        return record if self.kind == "bios" else Record({**record.state, **unread_properties}, record.key)

    def records(self) -> Mapping[str, Callable[[], Iterable[Record]]]:
        return {
            "FirmwareBoot": lambda: [Record(dict(self.boot))],
            "SecureBoot": lambda: [Record(self.secure_boot)],
            "OwnBootEntry": self._list_own_entries,
        }

    def on_restart(self) -> bool:
        """Remove BootNext, which the restart has used."""
        self.boot["next"] = None
        return False

    def choose_entry(self) -> Mapping[str, Any] | None:
        """Return the entry that the firmware starts: BootNext, which it removes, or else the first of the order."""
        number = self.boot["next"] or next(iter(self.boot["order"]), None)
        self.boot.update(next=None, current=number)
        return next((each for each in self.boot["entries"] if each["entry"] == number), None)

    # ---- as resources that are set

    def changes(self) -> Mapping[str, Change]:
        entry = ManagedKind("boot", self._make_entry, self._remove_own_entry)
        return {"OwnBootEntry": partial(self.set_managed, entry), "FirmwareBoot": self.set_boot}

    def _make_entry(self, name: str, _: StoredRecord | None, desired: Mapping[str, Any]) -> None:
        record = {part: desired[part] for part in ("partition", "path")}
        self.store_record("boot", name, record)
        if self.find_entry(name, record) is not None:
            return
        order = self.boot["order"]
        number = next(digits for each in range(16, 256) if (digits := f"{each:04X}") not in order)
        self.write_variable(
            f"Boot{number}", encode_load_option({"description": f"winhost-{name}", "active": True, **record})
        )
        self.write_variable("BootOrder", encode_order([*order, number]))
        refuse_if(number not in self.boot["order"], "FirmwareForgot", given=number, kept="no such entry")

    def _remove_own_entry(self, name: str, record: StoredRecord) -> None:
        if (entry := self.find_entry(name, record)) is not None:
            self.remove_entry(entry)

    def set_boot(self, call: SetCall) -> None:
        """Apply a set of FirmwareBoot."""
        self.set_next(call.desired["next"])

    def set_next(self, number: Json) -> None:
        """Set BootNext. Raises CmdletError if the firmware does not store it."""
        self._write_next(number)
        refuse_if(self.boot["next"] != number, "FirmwareForgot", given=number, kept=self.boot["next"])

    @as_cmdlet("bcdedit.exe")
    def _write_next(self, number: Json) -> None:
        if not self.physics.forgets:
            self.boot["next"] = number

    # ---- programs and variables

    def bcdedit(self, arguments: Sequence[str]) -> tuple[int, str]:
        """Run bcdedit.exe; return its exit code and output."""
        match list(arguments):
            case ["/enum", "firmware"]:
                return 0, self._render_enum()
            case ["/set", "{fwbootmgr}", "bootsequence", requested]:
                self._write_next({self.bcd_id(entry): entry["entry"] for entry in self.boot["entries"]}[requested])
                return 0, "The operation completed successfully."
            case ["/deletevalue", "{fwbootmgr}", "bootsequence"] if self.boot["next"] is None:
                return _ELEMENT_NOT_FOUND
            case ["/deletevalue", "{fwbootmgr}", "bootsequence"]:
                self._write_next(None)
                return 0, "The operation completed successfully."
        raise self.host.windows_error("not-stood-in", "bcdedit.exe", what=" ".join(arguments))

    @staticmethod
    def bcd_id(entry: Mapping[str, Any]) -> str:
        """Return the identifier of an entry in bcdedit."""
        return "{bootmgr}" if entry["path"] == WINDOWS_LOADER else "{" + make_guid("bcd", entry["entry"]) + "}"

    def _render_enum(self) -> str:
        manager, title, identifier = _BCD_TITLES.get(str(self.host.lab.language)[:2], _BCD_TITLES["en"])
        ids = {entry["entry"]: self.bcd_id(entry) for entry in self.boot["entries"]}
        order = "\r\n".join(f"{'' if number else 'displayorder':<24}{id_}" for number, id_ in enumerate(ids.values()))
        boot_sequence = [f"{'bootsequence':<24}{ids[self.boot['next']]}"] if self.boot["next"] in ids else []
        lines = [
            manager,
            "-" * len(manager),
            f"{identifier:<24}{{fwbootmgr}}",
            order,
            *boot_sequence,
            f"{'timeout':<24}2",
        ]
        blocks = ["\r\n".join(lines)]
        for entry in self.boot["entries"]:
            lines = [f"{identifier:<24}{self.bcd_id(entry)}", f"{'device':<24}partition=\\Device\\HarddiskVolume1"]
            lines += [f"{'path':<24}{entry['path']}"] if entry["path"] else []
            blocks.append("\r\n".join([title, "-" * len(title), *lines, f"{'description':<24}{entry['description']}"]))
        return "\r\n\r\n".join(blocks) + "\r\n"

    def remove_entry(self, number: str) -> None:
        """Remove an entry from the boot order, which also removes it from the entries."""
        self.write_variable("BootOrder", encode_order(each for each in self.boot["order"] if each != number))

    @as_cmdlet("Write-WinhostFirmwareVariable")
    def write_variable(self, name: str, value: bytes) -> None:
        """Write a variable; an empty value removes it."""
        if self.physics.forgets:
            return
        if name == "BootOrder":
            known = {entry["entry"]: entry for entry in self.boot["entries"]} | self._pending_entries
            order = [f"{each:04X}" for each in struct.unpack(f"<{len(value) // 2}H", value)]
            self.boot.update(order=order, entries=[known[each] for each in order if each in known])
        elif value:
            self._pending_entries[name[4:]] = parse_load_option(name[4:], value)
        else:
            self._pending_entries.pop(name[4:], None)

    def find_entry(self, name: str, record: Mapping[str, Json]) -> str | None:
        """Return the present number of the boot entry of one of winhost's records, or None."""
        expected = (f"winhost-{name}", record["partition"], str(record["path"]).casefold())
        for each in self.boot["entries"]:
            if (each["description"], each["partition"], str(each["path"]).casefold()) == expected:
                return str(each["entry"])
        return None

    def _list_own_entries(self) -> Iterator[Record]:
        for name, record in self.stored_records("boot"):
            entry = self.find_entry(name, record)
            yield Record({"made": True if entry else None, "entry": entry, **record}, {"name": name})

    @property
    def kind(self) -> str:
        """The kind of the firmware; by default `bios` if the system disk has an MBR."""
        styles = {r.state["style"] for r in self.host.instances("Disk") if r.state["system"]}
        return str(self._recorded.get("FirmwareBoot", {}).get("kind", "bios" if "MBR" in styles else "uefi"))

    @property
    def boot(self) -> dict[str, Json]:
        """The state of resource FirmwareBoot."""
        if self._boot is None:
            self._boot = {**_NO_BOOT_STATE, "kind": self.kind}
            if self.kind != "bios":
                system_partitions = (r.key["partition"] for r in self.host.instances("Partition") if r.state["system"])
                entry: dict[str, Json] = {"entry": "0000", "description": "Windows Boot Manager", "active": True}
                entry |= {"partition": next(system_partitions, None), "path": WINDOWS_LOADER}
                self._boot |= {"current": "0000", "order": ["0000"], "entries": [entry]}
            self._boot |= self._recorded.get("FirmwareBoot", {})
        return self._boot

    @property
    def secure_boot(self) -> Mapping[str, Json]:
        """The state of resource SecureBoot."""
        uefi = self.kind == "uefi"
        default: Mapping[str, Json] = {
            "state": "on" if uefi else "unsupported",
            "authorities": list(_TRUSTED) if uefi else [],
            "revoked": 431 if uefi else 0,
        }
        return {**default, **self._recorded.get("SecureBoot", {})}

    def read_variable(self, name: str, space: str) -> bytes | None:
        """Return the bytes of a variable, or None if it does not exist."""
        if space != GLOBAL:
            return None
        if name == "BootOrder":
            return encode_order(self.boot["order"])
        if name in ("BootCurrent", "BootNext"):
            number = self.boot[name.removeprefix("Boot").lower()]
            return encode_order([number]) if number else None
        entries: Iterable[Mapping[str, Any]] = (*self._pending_entries.values(), *self.boot["entries"])
        return next((encode_load_option(each) for each in entries if name == f"Boot{each['entry']}"), None)

    def read_secure_variable(self, name: str) -> bytes:
        """Return the bytes that Get-SecureBootUEFI returns. Raises CmdletError if the variable does not exist."""
        secure_boot = self.secure_boot
        state = secure_boot["state"]
        if self.kind == "bios":
            raise self.host.windows_error("no-firmware-variables", "Get-SecureBootUEFI")
        makers: Mapping[str, Callable[[], bytes | None]] = {
            "SetupMode": lambda: b"\0",
            "SecureBoot": lambda: None if state == "unsupported" else bytes([state == "on"]),
            "db": lambda: encode_authorities(secure_boot["authorities"]),
            "dbx": lambda: encode_revoked(secure_boot["revoked"]),
        }
        value = makers[name]()
        if not value:
            raise self.host.windows_error("no-such-variable", "Get-SecureBootUEFI")
        return value


_UNREAD_ERROR = agent_error(
    "NotRead", "OperationStopped", "Boot variables are not read with the whole host: that would start a C# compiler."
)
_NO_BOOT_STATE: Mapping[str, Json] = {"current": None, "next": None, "order": [], "entries": []}


_X509 = UUID("a5c059a1-94e4-4aa7-87b5-ab155c2bf072")
_SHA256 = UUID("c1c41626-504c-4092-aca9-41f936934328")
_OWNER = UUID("77fa9abd-0359-4d32-bd60-28f4e78f784b").bytes_le
_END = b"\x7f\xff\x04\x00"
_VALID_FROM = datetime(2024, 1, 1, tzinfo=UTC)


def encode_order(order: Iterable[str]) -> bytes:
    """Encode BootOrder, BootNext or BootCurrent."""
    return b"".join(struct.pack("<H", int(entry, 16)) for entry in order)


def encode_load_option(entry: Mapping[str, Any], optional: bytes = b"") -> bytes:
    """Encode a Boot#### variable."""
    path = b""
    if entry["partition"] is not None:
        path += (
            b"\x04\x01" + struct.pack("<HIQQ", 42, 1, 2048, 532480) + UUID(entry["partition"]).bytes_le + b"\x02\x02"
        )
    if entry["path"] is not None:
        encoded_path = _encode_text(entry["path"])
        path += b"\x04\x04" + struct.pack("<H", 4 + len(encoded_path)) + encoded_path
    path += _END
    return struct.pack("<IH", int(entry["active"]), len(path)) + _encode_text(entry["description"]) + path + optional


def parse_load_option(entry: str, option: bytes) -> dict[str, Any]:
    """Parse a Boot#### variable into an entry."""
    end = 6
    while option[end : end + 2] != b"\0\0":
        end += 2
    parsed: dict[str, Any] = {
        "entry": entry,
        "description": option[6:end].decode("utf-16-le"),
        "active": option[0] == 1,
    }
    parsed |= {"partition": None, "path": None}
    path = option[end + 2 :]
    while path[:2] != b"\x7f\xff":
        length = struct.unpack_from("<H", path, 2)[0]
        if path[:2] == b"\x04\x01":
            parsed["partition"] = str(UUID(bytes_le=path[24:40]))
        else:
            parsed["path"] = path[4:length].decode("utf-16-le").rstrip("\0")
        path = path[length:]
    return parsed


def _encode_text(text: str) -> bytes:
    return text.encode("utf-16-le") + b"\x00\x00"


def encode_authorities(names: Iterable[str]) -> bytes:
    """Encode `db` with certificates of these names."""
    return b"".join(_encode_signature_list(_X509, [_certificate(name)]) for name in names)


def encode_revoked(count: int) -> bytes:
    """Encode `dbx` with this number of hashes."""
    return _encode_signature_list(_SHA256, [number.to_bytes(32, "big") for number in range(count)]) if count else b""


def _encode_signature_list(kind: UUID, each: list[bytes]) -> bytes:
    size = 16 + len(each[0])
    body = b"".join(_OWNER + data for data in each)
    return kind.bytes_le + struct.pack("<III", 28 + len(body), 0, size) + body


@once
def _certificate(name: str) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Microsoft Corporation"),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )
    unsigned = x509.CertificateBuilder(
        subject, subject, key.public_key(), 1, _VALID_FROM, _VALID_FROM.replace(year=2039)
    )
    return unsigned.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
