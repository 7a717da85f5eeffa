"""Insert installation media through a machine's BMC by Redfish, start from them once, and eject them.

A BMC is used only if it reports the SMBIOS UUID and serial number that the host itself reported in the same run: people
mistype addresses, and the BMC of another machine answers, too. The client is DMTF's, which verifies certificates only
if it gets those to trust, so it always gets them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from winhost.autoinstall.manifest import MachineIdentity
from winhost.core.dataclass import dataclass
from winhost.model.errors import RefusedError, UsageError, WinhostError, visible
from winhost.model.secrets import Secret

_TIMEOUT_S = 60
_ROOT = "/redfish/v1/"
_DISCS = {"CD", "DVD"}
_MAX_MEMBERS = 64


@dataclass(frozen=True)
class Bmc:
    """The address and login of a BMC. ca: a file with its certificate, or with that of the signer; None if public
    authorities signed it.
    """

    url: str
    user: str
    password: Secret
    ca: str | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme != "https" or not parts.hostname or parts.username:
            hint = "Write it as https://ADDRESS, with the name or the IP address of the BMC."
            raise UsageError("BmcUnusable", what=f"'{visible(self.url)[:100]}' is no address of a BMC", hint=hint)


@dataclass(frozen=True)
class BmcSystem:
    """A machine behind a BMC: its path in Redfish, and that of its drive for discs."""

    path: str
    drive: str


@contextmanager
def bmc_session(bmc: Bmc) -> Iterator["BmcSession"]:
    """Log on, and off again at the end. Raises UsageError (NoRedfish), WinhostError (BmcFailed)."""
    try:
        import redfish  # type: ignore[import-not-found, import-untyped, unused-ignore]
        import requests
    except ImportError:
        hint = "Install it next to winhost: pip install 'winhost[redfish]'"
        raise UsageError("NoRedfish", what="the client for BMCs is not installed here", hint=hint) from None
    trusted = bmc.ca or str(requests.utils.DEFAULT_CA_BUNDLE_PATH)
    try:
        # With retries it would repeat requests that were not answered in time, such as a restart.
        client = redfish.redfish_client(
            bmc.url, bmc.user, bmc.password.reveal(), cafile=trusted, timeout=_TIMEOUT_S, max_retry=0
        )
        client.login(auth="session")
    except Exception as error:  # noqa: BLE001 - it raises what requests raises, and classes of its own
        raise _bmc_error(bmc.url, f"cannot be logged on to ({type(error).__name__})") from None
    try:
        yield BmcSession(bmc.url, client)
    finally:
        with suppress(Exception):  # the session ends by itself
            client.logout()


def _bmc_error(url: str, why: str) -> WinhostError:
    return WinhostError("BmcFailed", what=f"the BMC at {visible(url)} {visible(why)[:300]}")


class BmcSession:
    """Requests to a BMC. All of them raise WinhostError (BmcFailed)."""

    def __init__(self, url: str, client: Any) -> None:
        self._url, self._client = url, client

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        arguments = {} if body is None else {"body": dict(body)}
        try:
            answer = getattr(self._client, method)(path, **arguments)
            found: Any = answer.dict if answer.text else {}
        except Exception as error:  # noqa: BLE001 - as above
            raise _bmc_error(self._url, f"does not answer {method} {path} ({type(error).__name__})") from None
        if answer.status >= 300 or not isinstance(found, dict):
            raise _bmc_error(self._url, f"answers {method} {path} with HTTP {answer.status}")
        return found

    def _members(self, path: str) -> list[dict[str, Any]]:
        return [self._request("get", path) for path in _links_at(self._request("get", path), "Members")]

    def system(self, machine: MachineIdentity, *, free: bool = True) -> BmcSystem:
        """Find this machine, with a drive for discs. free: the drive has to be empty. Raises RefusedError
        (OtherMachine, NoDrive).
        """
        found = [
            each
            for each in self._members(f"{_ROOT}Systems")
            if str(each.get("UUID", "")).strip().lower() == machine.uuid
            and str(each.get("SerialNumber", "")).strip() == machine.serial
            and _path_of(each) is not None
        ]
        if not machine.is_unique or machine.serial is None or len(found) != 1:
            raise RefusedError(
                "OtherMachine",
                what=f"the BMC at {visible(self._url)} cannot be shown to be that of this host",
                meaning="SMBIOS UUID and serial number must both be the host's, and not placeholders of the vendor.",
                hint="Check the BMC's address; or use another kind of media",
            )
        system = found[0]
        holders = [system, *(self._request("get", path) for path in _links_at(system, "Links", "ManagedBy"))]
        for holder in holders:
            path = _path_of(holder.get("VirtualMedia"))
            for drive in self._members(path) if path else ():
                is_for_discs = bool(_DISCS & {str(kind).upper() for kind in _list_at(drive, "MediaTypes")})
                if is_for_discs and not (free and drive.get("Inserted")):
                    return BmcSystem(system["@odata.id"], str(drive["@odata.id"]))
        hint = "Take out what somebody has inserted; some BMCs need a licence for virtual media"
        raise RefusedError("NoDrive", what=f"the BMC at {visible(self._url)} has no free drive for discs", hint=hint)

    def insert(self, system: BmcSystem, image: str) -> None:
        """Insert an image. image: an https address that the BMC reads. Raises UsageError (MediaAddress)."""
        if urlsplit(image).scheme != "https":
            what = "a BMC gets media only over HTTPS, because they contain keys, or the token for them"
            raise UsageError("MediaAddress", what=what, hint="Give an https:// address that the BMC can reach")
        self._act(system.drive, "VirtualMedia.InsertMedia", {"Image": image, "Inserted": True, "WriteProtected": True})
        if not self._request("get", system.drive).get("Inserted"):
            raise _bmc_error(self._url, "accepted the media, but reports that there are none")

    def start_once(self, system: BmcSystem) -> None:
        """Start from the disc the next time. The setting is read back, because some BMCs accept it and forget it."""
        boot = {"BootSourceOverrideTarget": "Cd", "BootSourceOverrideEnabled": "Once", "BootSourceOverrideMode": "UEFI"}
        self._request("patch", system.path, {"Boot": boot})
        found = self._request("get", system.path)
        if any(_value_at(found, "Boot", key) != value for key, value in boot.items()):
            raise _bmc_error(self._url, "did not store the boot device")

    def restart(self, system: BmcSystem) -> None:
        """Force a restart. A Windows that runs was asked to restart before."""
        self._act(system.path, "ComputerSystem.Reset", {"ResetType": "ForceRestart"})

    def take_back(self, system: BmcSystem) -> None:
        """Eject the media, and let the machine start as usual again."""
        if self._request("get", system.drive).get("Inserted"):
            self._act(system.drive, "VirtualMedia.EjectMedia", {})
        self._request("patch", system.path, {"Boot": {"BootSourceOverrideEnabled": "Disabled"}})

    def _act(self, path: str, name: str, body: Mapping[str, Any]) -> None:
        target = _value_at(self._request("get", path), "Actions", f"#{name}", "target")
        if not isinstance(target, str) or not target.startswith("/"):
            raise _bmc_error(self._url, f"offers no {name} at {path}")
        self._request("post", target, body)


def _path_of(link: object) -> str | None:
    """Return the path of a link in an answer, which must be on the same BMC; None for anything else."""
    path = _value_at(link, "@odata.id")
    return path if isinstance(path, str) and path.startswith("/") and not path.startswith("//") else None


def _value_at(found: object, *keys: str) -> Any:
    """Return the value below these keys; None if there is none. A BMC may answer null, or anything, at each of them."""
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _list_at(found: object, *keys: str) -> list[Any]:
    listed = _value_at(found, *keys)
    return listed[:_MAX_MEMBERS] if isinstance(listed, list) else []


def _links_at(found: object, *keys: str) -> list[str]:
    return [path for each in _list_at(found, *keys) if (path := _path_of(each))]
