"""The firmware of a simulated host: its variables, what it boots, and Secure Boot."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from winhost.core.answers import Json, Record
from winhost.lab.physics.firmware_format import authorities, load_option, numbers, revoked
from winhost.lab.physics.host_protocol import WindowsHost
from winhost.lab.physics.windows_errors import CmdletError, not_administrator

GLOBAL = "{8be4df61-93ca-11d2-aa0d-00e098032b8c}"
SECURITY = "{d719b2cb-3d3a-4596-a3bc-dad00e67656f}"
SHIM = "{605dab50-e046-4300-abb6-3dd810dd8b23}"
WINDOWS_LOADER = "\\EFI\\Microsoft\\Boot\\bootmgfw.efi"
_TRUSTED = (
    "Microsoft Windows Production PCA 2011",
    "Microsoft Corporation UEFI CA 2011",
    "Windows UEFI CA 2023",
    "Microsoft UEFI CA 2023",
)


class FirmwarePart:
    """What of it a host file does not say is as of a new machine: Windows is booted, and Secure Boot is on."""

    def __init__(self, host: WindowsHost, initial: Mapping[str, Sequence[Record]]) -> None:
        self._host = host
        self._stated = {name: dict(each[0].state) for name, each in initial.items() if each and name in _RESOURCES}
        self._boot: dict[str, Json] | None = None
        for resource in _RESOURCES:
            host.refusals[resource] = self._refusal

    def _refusal(self) -> CmdletError | None:
        return None if self._host.lab.administrator else not_administrator()

    def records(self) -> Mapping[str, Callable[[], Iterable[Record]]]:
        """The calls that list the instances."""
        return {
            "FirmwareBoot": lambda: [Record(dict(self.boot))],
            "SecureBoot": lambda: [Record(self.secure_boot)],
        }

    def restarted(self) -> bool:
        """Nothing of it waits for Windows."""
        return False

    @property
    def kind(self) -> str:
        """Of a disk with MBR, Windows boots by BIOS."""
        styles = {r.state["style"] for r in self._host.instances("Disk") if r.state["system"]}
        return str(self._stated.get("FirmwareBoot", {}).get("kind", "bios" if "MBR" in styles else "uefi"))

    @property
    def boot(self) -> dict[str, Json]:
        """As resource FirmwareBoot has it."""
        if self._boot is None:
            self._boot = {**(_NO_BOOT if self.kind == "bios" else self._windows_alone()), "kind": self.kind}
            self._boot |= self._stated.get("FirmwareBoot", {})
        return self._boot

    def _windows_alone(self) -> dict[str, Json]:
        system = (r.key["partition"] for r in self._host.instances("Partition") if r.state["system"])
        entry = {
            "entry": "0000",
            "description": "Windows Boot Manager",
            "active": True,
            "partition": next(system, None),
            "path": WINDOWS_LOADER,
        }
        return {"current": "0000", "next": None, "order": ["0000"], "entries": [entry]}

    @property
    def secure_boot(self) -> Mapping[str, Json]:
        """As resource SecureBoot has it."""
        uefi = self.kind == "uefi"
        usual: Mapping[str, Json] = {
            "state": "on" if uefi else "unsupported",
            "authorities": list(_TRUSTED) if uefi else [],
            "revoked": 431 if uefi else 0,
            "sbat": None,
        }
        return {**usual, **self._stated.get("SecureBoot", {})}

    def variable(self, name: str, space: str) -> bytes | None:
        """Its bytes, or None where there is no such variable."""
        made = self._variables().get((space, name))
        return made() if made else None

    def _variables(self) -> Mapping[tuple[str, str], Callable[[], bytes | None]]:
        boot, secure = self.boot, self.secure_boot
        entries: Iterable[Mapping[str, Any]] = boot["entries"]
        state = secure["state"]
        return {
            (GLOBAL, "BootOrder"): lambda: numbers(boot["order"]),
            (GLOBAL, "BootCurrent"): lambda: numbers([boot["current"]]) if boot["current"] else None,
            (GLOBAL, "BootNext"): lambda: numbers([boot["next"]]) if boot["next"] else None,
            (GLOBAL, "SecureBoot"): lambda: None if state == "unsupported" else bytes([state == "on"]),
            (SECURITY, "db"): lambda: authorities(secure["authorities"]),
            (SECURITY, "dbx"): lambda: revoked(secure["revoked"]),
            (SHIM, "SbatLevelRT"): lambda: None if secure["sbat"] is None else f"{secure['sbat']}\n".encode(),
            **{(GLOBAL, f"Boot{each['entry']}"): lambda each=each: load_option(each) for each in entries},  # type: ignore[misc]
        }


_NO_BOOT: Mapping[str, Json] = {"current": None, "next": None, "order": [], "entries": []}
_RESOURCES = ("FirmwareBoot", "SecureBoot")
part = FirmwarePart
