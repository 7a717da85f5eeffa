"""Installation media through a machine's BMC, by Redfish: inserted, started from once, taken out again.

A BMC is used only if it reports the SMBIOS UUID and serial number that the host itself reported in the same run: people
write its address down, and the BMC of the neighbour answers as readily. The client is DMTF's, which verifies no
certificate unless it is told by which; it always is.
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
    """The address and login of a BMC. ca: a file with the certificate that it shows, or of who signed that; None for
    public ones.
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
        hint = "Install it beside winhost: pip install 'winhost[redfish]'"
        raise UsageError("NoRedfish", what="the client for BMCs is not installed here", hint=hint) from None
    trusted = bmc.ca or str(requests.utils.DEFAULT_CA_BUNDLE_PATH)
    try:
        # It would send again what was not answered in time, an order to restart among that.
        client = redfish.redfish_client(
            bmc.url, bmc.user, bmc.password.reveal(), cafile=trusted, timeout=_TIMEOUT_S, max_retry=0
        )
        client.login(auth="session")
    except Exception as error:  # noqa: BLE001 - it raises what requests raises, and classes of its own
        raise _failed(bmc.url, f"cannot be logged on to ({type(error).__name__})") from None
    try:
        yield BmcSession(bmc.url, client)
    finally:
        with suppress(Exception):  # the session ends by itself
            client.logout()


def _failed(url: str, why: str) -> WinhostError:
    return WinhostError("BmcFailed", what=f"the BMC at {visible(url)} {visible(why)[:300]}")


class BmcSession:
    """Requests to a BMC. All of them raise WinhostError (BmcFailed)."""

    def __init__(self, url: str, client: Any) -> None:
        self._url, self._client = url, client

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        words = {} if body is None else {"body": dict(body)}
        try:
            answer = getattr(self._client, method)(path, **words)
            found: Any = answer.dict if answer.text else {}
        except Exception as error:  # noqa: BLE001 - as above
            raise _failed(self._url, f"does not answer {method} {path} ({type(error).__name__})") from None
        if answer.status >= 300 or not isinstance(found, dict):
            raise _failed(self._url, f"answers {method} {path} with HTTP {answer.status}")
        return found

    def _members(self, path: str) -> list[dict[str, Any]]:
        return [self._request("get", path) for path in _links(self._request("get", path), "Members")]

    def system(self, wanted: MachineIdentity, *, free: bool = True) -> BmcSystem:
        """Find this machine, with a drive for discs. free: the drive has to be empty. Raises RefusedError
        (OtherMachine, NoDrive).
        """
        found = [
            each
            for each in self._members(f"{_ROOT}Systems")
            if str(each.get("UUID", "")).strip().lower() == wanted.uuid
            and str(each.get("SerialNumber", "")).strip() == wanted.serial
            and _path_of(each) is not None
        ]
        if not wanted.is_unique or wanted.serial is None or len(found) != 1:
            raise RefusedError(
                "OtherMachine",
                what=f"the BMC at {visible(self._url)} is not shown to be that of this host",
                meaning="SMBIOS UUID and serial number must both be the host's, and be no placeholder of the vendor.",
                hint="Check the BMC's address; or use another kind of media",
            )
        system = found[0]
        holders = [system, *(self._request("get", path) for path in _links(system, "Links", "ManagedBy"))]
        for holder in holders:
            path = _path_of(holder.get("VirtualMedia"))
            for drive in self._members(path) if path else ():
                is_for_discs = bool(_DISCS & {str(kind).upper() for kind in _listed(drive, "MediaTypes")})
                if is_for_discs and not (free and drive.get("Inserted")):
                    return BmcSystem(system["@odata.id"], str(drive["@odata.id"]))
        hint = "Take out what somebody has inserted; some BMCs need a licence for virtual media"
        raise RefusedError("NoDrive", what=f"the BMC at {visible(self._url)} has no free drive for discs", hint=hint)

    def insert(self, system: BmcSystem, image: str) -> None:
        """image: an https address that the BMC reads. Raises UsageError (MediaAddress)."""
        if urlsplit(image).scheme != "https":
            what = "a BMC gets media over HTTPS alone, because they hold keys, or the token for them"
            raise UsageError("MediaAddress", what=what, hint="Give an https:// address that the BMC can reach")
        self._act(system.drive, "VirtualMedia.InsertMedia", {"Image": image, "Inserted": True, "WriteProtected": True})
        if not self._request("get", system.drive).get("Inserted"):
            raise _failed(self._url, "took the media, and says that there are none")

    def start_once(self, system: BmcSystem) -> None:
        """Start from the disc the next time. The setting is read back, because some BMCs accept it and forget it."""
        wanted = {
            "BootSourceOverrideTarget": "Cd",
            "BootSourceOverrideEnabled": "Once",
            "BootSourceOverrideMode": "UEFI",
        }
        self._request("patch", system.path, {"Boot": wanted})
        found = self._request("get", system.path)
        if any(_within(found, "Boot", key) != value for key, value in wanted.items()):
            raise _failed(self._url, "did not keep what to start from")

    def restart(self, system: BmcSystem) -> None:
        """Force a restart. A Windows that runs was asked to restart before."""
        self._act(system.path, "ComputerSystem.Reset", {"ResetType": "ForceRestart"})

    def take_back(self, system: BmcSystem) -> None:
        """Eject the media, and let the machine start as usual again."""
        if self._request("get", system.drive).get("Inserted"):
            self._act(system.drive, "VirtualMedia.EjectMedia", {})
        self._request("patch", system.path, {"Boot": {"BootSourceOverrideEnabled": "Disabled"}})

    def _act(self, path: str, name: str, body: Mapping[str, Any]) -> None:
        target = _within(self._request("get", path), "Actions", f"#{name}", "target")
        if not isinstance(target, str) or not target.startswith("/"):
            raise _failed(self._url, f"offers no {name} at {path}")
        self._request("post", target, body)


def _path_of(link: object) -> str | None:
    """The path of a link in an answer, which must be on the same BMC."""
    path = _within(link, "@odata.id")
    return path if isinstance(path, str) and path.startswith("/") and not path.startswith("//") else None


def _within(found: object, *keys: str) -> Any:
    """The value below these keys; None where there is none. A BMC may answer null, or anything, at each of them."""
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _listed(found: object, *keys: str) -> list[Any]:
    listed = _within(found, *keys)
    return listed[:_MAX_MEMBERS] if isinstance(listed, list) else []


def _links(found: object, *keys: str) -> list[str]:
    return [path for each in _listed(found, *keys) if (path := _path_of(each))]
