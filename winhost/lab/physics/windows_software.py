"""Software of a simulated host: an optional feature, files that were brought, WSL, Windows Installer, driver models,
and curl.exe, which really fetches: from the computer that runs winhost, and that is this one.
"""

import base64
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import PureWindowsPath

from pydantic import Field

from winhost.core.answers import Json, Key, Record
from winhost.lab.physics.lab_section import SourcePhysics, part_physics
from winhost.lab.physics.parts import Change, Host, Part, SetCall, as_cmdlet
from winhost.lab.physics.virtual_machine import Device
from winhost.lab.physics.windows_errors import not_owned_error, refusal, refuse
from winhost.lab.physics.windows_files import FOLDER
from winhost.model.written import Closed

RECORD = "SOFTWARE\\winhost"
PRODUCT = "{5C9D4D3B-7A3E-4C52-9B1F-2E6A0D84F7C1}"
MODELS = ("WDDM", "TCC", "MCDM")  # by the numbers of nvidia-smi -dm
PENDING = {"install-pending": "installed", "uninstall-pending": "available"}

_SUM = b"winhost lab: content with SHA-256 "
_FILES = f"{FOLDER}\\files"
_OF_MICROSOFT = re.compile(r"(^|, )O=Microsoft Corporation(,|\Z)")
_BUSY, _BAD_PACKAGE = 1618, 1620
_ENDS_WELL = (0, 3010, 1641)
_RENAMES = "file-rename"  # of PendingReboot: files that were in use
_NOT_FOUND = 6  # of nvidia-smi


class Software(Part):
    """The installed software, and the conditions that an installation may meet."""

    administrator_resources = ("StagedFile",)
    administrator_settable = ("Wsl", "GpuDriverModel")

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        told = host.initial.get("VirtualMachinePlatform", ())
        # Who may not ask for features may still see their effect.
        seen = "installed" if any(r.state["version"] for r in host.initial.get("Wsl", ())) else "available"
        self.platform = str(told[0].state["feature"]) if told else seen
        self.record: dict[str, str] = {}  # values of the registry key of winhost
        self._brought: dict[str, SourcePhysics] = {}
        for key in (record.key for record in host.initial.get("StagedFile", ())):
            path = self.path_of(key["sha256"], key["name"])
            self._keep(path, key["sha256"], self._source(key["source"]))
            self.record[f"file {key['sha256']}-{key['name']}"] = key["source"]
        self.wsl: str | None = None
        self.in_box = False
        for state in (record.state for record in host.initial.get("Wsl", ())):
            both = (state.get(name) for name in ("version", "package"))
            version, package = (value if isinstance(value, str) else None for value in both)
            self.wsl, self.in_box = version, state["present"] is True and version is None
            if version and package:
                self.record |= {"wsl version": version, "wsl package": package}
        self._runs: dict[str, int] = {}  # how often a package was run
        self._pending = {
            record.key["location"]: record.state["pending"]
            for record in host.initial.get("GpuDriverModel", ())
            if isinstance(record.state["pending"], str)
        }
        host.registry_keys.append(self._keys)

    def _keys(self) -> list[tuple[str, Mapping[str, Json]]]:
        return [(RECORD, dict(self.record))] if self.record else []

    @property
    def has_platform(self) -> bool:
        """True until a restart has removed the platform."""
        return self.platform in ("installed", "uninstall-pending")

    # ---- as a part of the machine

    def records(self) -> Mapping[str, Callable[[], Iterable[Record]]]:
        return {
            "VirtualMachinePlatform": lambda: (Record({"feature": self.platform}),),
            "StagedFile": lambda: (*self._staged(), *(Record({"present": None}, key) for key in self._noted("part"))),
            "Wsl": lambda: (
                Record({"present": self.wsl is not None or self.in_box, "version": self.wsl, "package": self.package}),
            ),
            "GpuDriverModel": lambda: (Record(self._models(d), d.key) for d in self.host.devices if drives(d)),
        }

    def on_restart(self) -> bool:
        """Finish a feature that waited for the restart."""
        waited = self.platform in PENDING
        self.platform = PENDING.get(self.platform, self.platform)
        for device in self.host.devices:
            if (model := self._pending.get(device.location)) is not None:
                device.enabled_state = {**device.enabled_state, "driver_model": model}
        return waited

    @property
    def package(self) -> str | None:
        """The MSI that the installed version came from, if winhost knows it."""
        ours = self.wsl is not None and self.record.get("wsl version") == self.wsl
        return self.record.get("wsl package") if ours else None

    def _staged(self) -> list[Record]:
        keys = self._noted("file")
        return [
            Record({"present": True}, key)
            for key in keys
            if self.read_hash(self.path_of(key["sha256"], key["name"])) == key["sha256"]
        ]

    def _noted(self, kind: str) -> list[dict[str, str]]:
        entries = [re.fullmatch(rf"{kind} ([0-9a-f]{{64}})-(.+)", name) for name in self.record]
        return [{"sha256": e[1], "name": e[2], "source": self.record[e[0]]} for e in entries if e]

    # ---- files and registry

    @staticmethod
    def path_of(found: str, name: str) -> str:
        """The path of a file with this SHA-256 and name."""
        return f"{_FILES}\\{found}-{name}"

    def staged_path(self, desired: Json) -> str:
        """Find a file that winhost brought by its hash. Raises CmdletError."""
        keys = [record.key for record in self._staged() if record.key["sha256"] == desired]
        refuse(not keys, "NotStaged", desired=desired)
        return min(self.path_of(key["sha256"], key["name"]) for key in keys)

    def read_hash(self, path: str) -> str:
        """SHA-256 of a file, empty where there is none."""
        content = self.host.files.read(path)
        if content is None:
            return ""
        return content[len(_SUM) :].decode() if content.startswith(_SUM) else sha256(content).hexdigest()

    def copy_source(self, source: str, path: str) -> str:
        """Download or copy a file and return its SHA-256. Raises CmdletError."""
        physics = self._brought.get(source) or self._source(source)
        with self.host.changing("Copy-WinhostSource"):
            if source in self._brought:  # a copy of what lies on the host already
                self._keep(path, self.read_hash(source), physics)
                return self.read_hash(path)
            refuse(not physics.there, "NotFetched", why="There is nothing.")
            asked = re.search(r"([0-9a-f]{64})-", PureWindowsPath(path).name)
            self._keep(path, physics.sha256 or (asked[1] if asked else ""), physics)
            return self.read_hash(path)

    def move_file(self, path: str, target: str) -> None:
        """Rename a file."""
        sent = self.record.get(f"part {PureWindowsPath(target).name}", "")
        physics = self._brought.pop(path) if path in self._brought else self._source(sent)
        self._keep(target, self.read_hash(path), physics)
        self.host.files.remove(path)

    def _keep(self, path: str, found: str, physics: SourcePhysics) -> None:
        """Write a file of which only the hash is known."""
        self.host.files.write(path, _SUM + found.encode())
        self._brought[path] = physics

    def write_registry(self, name: str, value: str | None) -> None:
        """Write a value of winhost's registry key; None removes it."""
        if value is None:
            self.record.pop(name, None)
        else:
            self.record[name] = value

    def _source(self, source: str) -> SourcePhysics:
        given: SourcePhysics = self.host.lab.sources.get(source, SourcePhysics())
        return given

    def signature(self, path: str) -> tuple[str, str]:
        """Get-AuthenticodeSignature: its status and the subject of the signer."""
        physics = self._brought[path]
        return physics.signature, physics.signer if physics.signature != "NotSigned" else ""

    def changes(self) -> Mapping[str, Change]:
        return {"StagedFile": self.set_staged, "Wsl": self.set_wsl, "GpuDriverModel": self.set_model}

    def set_staged(self, asked: SetCall) -> None:
        """Bring a file, or remove it."""
        name, path = self._named(asked.key)
        if asked.desired["present"]:
            source, wanted, part = asked.key["source"], asked.key["sha256"], f"{path}.part"
            self.host.files.make_folders(FOLDER, _FILES)
            if not source.startswith("./") and self.read_hash(part) != wanted:
                self.copy_source(source, part)
            if (found := self.read_hash(part)) != wanted:
                self._remove_part(name, path)
                raise refusal("WrongHash", found=found, desired=wanted)
            self.move_file(part, path)
            self.write_registry(f"file {name}", source)
        elif self.record.get(f"file {name}", "").casefold() == asked.key["source"].casefold():
            self.host.files.remove(path)
            self.write_registry(f"file {name}", None)
        self._remove_part(name, path)

    def _named(self, key: Key) -> tuple[str, str]:
        """The registry name of a file, and its path."""
        return f"{key['sha256']}-{key['name']}", self.path_of(key["sha256"], key["name"])

    def _remove_part(self, name: str, path: str) -> None:
        self.host.files.remove(f"{path}.part")
        for kind in ("version", "part"):
            self.write_registry(f"{kind} {name}", None)

    def upload(self, key: Key, piece: Mapping[str, Json] | None) -> dict[str, Json]:
        """Take a piece of a staged file, and tell how much was received; without a piece, also its hash."""
        name, path = self._named(key)
        files, part, source = self.host.files, f"{path}.part", key["source"]
        fetched = source.startswith("https://")
        received, version = files.length(part), self.record.get(f"version {name}", "")
        if piece is None:
            whole = int(version.split(" ")[0]) if fetched and version else None
            return {"received": received, "sha256": None if fetched else self.read_hash(part), "whole": whole}
        if piece["at"] == 0:
            files.make_folders(FOLDER, _FILES)
            self.write_registry(f"part {name}", source)
            self.write_registry(f"version {name}", None)
            version = ""
        elif piece["at"] != received:
            raise refusal("OutOfStep", received=received, at=piece["at"])
        if piece.get("from") is None or piece["at"] == 0:
            files.append(part, base64.b64decode(piece.get("bytes") or ""), restart=piece["at"] == 0)
        whole = None
        if fetched:
            whole = self._fetch_next(source, name, part, version)
        elif piece.get("from") is not None:
            self._fetch_piece(part, piece["from"])
        return {"received": files.length(part), "sha256": None, "whole": whole}

    def _fetch_next(self, source: str, name: str, part: str, version: str) -> Json:
        """Fetch the next piece from its source, and return the length of the whole."""
        before = self.host.files.length(part)
        if version and int(version.split(" ")[0]) == before:
            return before
        told = self.receive_slice(source, part, version)
        refuse(not told["resumes"], "NoRange")
        if told["version"] != version:
            self.write_registry(f"version {name}", str(told["version"]))
        elif self.host.files.length(part) == before:
            raise refusal("NotFetched", why=f"Nothing more of it came: {told['why']}")
        return told["whole"]

    def receive_slice(self, source: str, path: str, version: str) -> dict[str, Json]:
        """Add the next slice of a download to what is there of the same version. Raises CmdletError."""
        physics, asked = self._source(source), re.search(r"([0-9a-f]{64})-", PureWindowsPath(path).name)
        with self.host.changing("Receive-WinhostSlice"):
            refuse(not physics.there, "NotFetched", why="There is nothing.")
            content = _SUM + (physics.sha256 or (asked[1] if asked else "")).encode()
            told = f"{len(content)} {physics.etag}"
            at = self.host.files.length(path) if version == told else 0
            resumes = at == 0 or physics.ranges
            if resumes:
                end = None if physics.piece is None else at + physics.piece
                self.host.files.append(path, content[at:end], restart=at == 0)
                self._brought[path] = physics
            why = "its time is over"
            return {"whole": len(content), "version": told, "resumes": resumes, "why": why}

    def _fetch_piece(self, part: str, address: Json) -> None:
        """Fetch a piece with curl.exe from the computer that runs winhost."""
        curl, before = self.host.programs.get("curl.exe"), self.host.files.length(part)
        if curl is None:
            raise refusal("NotFetched", why="This Windows has no curl.exe.")
        code, _ = curl(["--output", part, str(address)])
        if code not in (0, 18, 28) or self.host.files.length(part) == before:
            raise refusal("NotFetched", why=f"curl.exe could not fetch it: {code}")

    # ---- Windows Installer

    def set_wsl(self, asked: SetCall) -> bool:
        """Install, upgrade or remove WSL. Return True if that takes a restart."""
        desired, restart = asked.desired, False
        version, package = desired.get("version"), desired.get("package")
        if version is None and package is None:
            if "version" in desired and self.package is None:
                raise not_owned_error("This WSL was not installed by winhost, which does not remove it.")
            restart = "version" in desired and self._msiexec("/x", PRODUCT)
            for name in ("wsl version", "wsl package"):
                self.write_registry(name, None)
            return restart
        version = desired.get("version", self.wsl)
        if self.wsl is not None and _numbers(self.wsl) > _numbers(str(version)):
            raise refusal("Downgrade", wsl=self.wsl, version=version)
        path = self.staged_path(package)
        status, signer = self.signature(path)
        good = status == "Valid" and _OF_MICROSOFT.search(re.sub('"[^"]*"', "", signer))
        refuse(not good, "BadSignature", path=path, status=status, signer=signer)
        restart = self._msiexec("/i", path)
        self.write_registry("wsl version", self.wsl or "")
        self.write_registry("wsl package", str(package))
        return restart

    def _msiexec(self, *arguments: str) -> bool:
        code = self.run_msiexec(arguments)
        refuse(code == _BUSY, "InstallerBusy")
        refuse(code not in _ENDS_WELL, "InstallerFailed", code=code)
        return code != 0

    @as_cmdlet("msiexec.exe")
    def run_msiexec(self, arguments: Sequence[str]) -> int:
        """msiexec.exe /i PATH or /x PRODUCT: its exit code."""
        if arguments[0] == "/x":
            self.wsl = None
            self.host.distros.stop_everything()
            return 0
        path = arguments[1]
        physics = self._brought[path]
        number = self._runs.get(path, 0)
        self._runs[path] = number + 1
        code = physics.msiexec[number] if number < len(physics.msiexec) else 0
        named = re.search(r"\d+(?:\.\d+){3}", PureWindowsPath(path).name.partition("-")[2])
        version = physics.version or (named[0] if named else None)
        if code not in _ENDS_WELL or version is None:
            return code or _BAD_PACKAGE
        self.wsl = version
        self.host.distros.stop_everything()
        if code != 0:
            self.host.await_restart(_RENAMES)
        return code

    # ---- driver models

    def _models(self, device: Device) -> dict[str, Json]:
        current = device.state()["driver_model"]
        pending = self._pending.get(device.location, current) if isinstance(current, str) else current
        return {"current": current, "pending": pending}

    def set_model(self, asked: SetCall) -> bool:
        """Set the driver model that counts from the next restart on."""
        model, location = str(asked.desired["pending"]), asked.key["location"]
        displays = next(device.state()["displays"] for device in self.host.devices if device.location == location)
        refuse(model != MODELS[0] and displays and "headless" not in asked.accept, "TakesDisplay")
        self.set_driver_model(location, MODELS.index(model))
        current, pending = self.driver_models().get(location, (None, None))
        refuse(pending != model, "DriverModelRefused")
        return current != pending

    def driver_models(self) -> dict[str, tuple[str, str]]:
        """Now and after the next restart, by location path, of the GPUs that the driver of NVIDIA runs."""
        found = {d.location: self._models(d) for d in self.host.devices if drives(d)}
        return {
            where: (models["current"], models["pending"])
            for where, models in found.items()
            if isinstance(models["current"], str)
        }

    @as_cmdlet("nvidia-smi.exe")
    def set_driver_model(self, location: str, number: int) -> tuple[int, str]:
        """nvidia-smi -dm: its exit code and what it prints."""
        device = next((d for d in self.host.devices if d.location == location), None)
        if device is None or location not in self.driver_models():
            return _NOT_FOUND, "No devices were found"
        models = device.physics.driver_models
        if models is None:  # GPUs for games know nothing else; of the others some are seen in each model
            models = MODELS[:1] if "GeForce" in str(device.enabled_state["name"]) else MODELS
        if MODELS[number] not in models:
            return 0, "Unable to set driver model: Not Supported\nTreating as warning and moving on.\nAll done."
        self._pending[location] = MODELS[number]
        return 0, f"Set driver model to {MODELS[number]}.\nReboot required.\nAll done."


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, f"{version}.0.0".split(".")[:4]))  # 2.6.1 is 2.6.1.0


def drives(device: Device) -> bool:
    """Tell whether NVIDIA's driver is for this device."""
    return device.key["device"].startswith("VEN_10DE&") and device.enabled_state["kind"] == "display"


_NO_CONNECTION, _HTTP_ERROR, _TIMED_OUT = 7, 22, 28


@part_physics("curl")
class CurlPhysics(Closed):
    """The physics of curl.exe."""

    there: bool = Field(default=True, description="Windows has it, as from 1803 and Server 2019 on")
    reaches: bool = Field(default=True, description="no firewall stands between it and the computer that runs winhost")
    piece: int | None = Field(default=None, description="bytes that come before its time is over; left out, all")


class Curl(Part):
    """curl.exe, where Windows has it."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._physics = CurlPhysics.model_validate(host.lab.found.get("curl", {}))
        if self._physics.there:
            host.programs["curl.exe"] = self.curl

    def curl(self, arguments: Sequence[str]) -> tuple[int, str]:
        """Run it: its exit code and what it prints. It goes on where the file ends, as --continue-at says."""
        path, url = arguments[arguments.index("--output") + 1], arguments[-1]
        if not self._physics.reaches:
            return _TIMED_OUT, ""
        begin = self.host.files.length(path)
        asked = urllib.request.Request(url, headers={"Range": f"bytes={begin}-"})  # noqa: S310 - of the lab's own winhost
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=60) as answer:
                content = answer.read(self._physics.piece)
                code = 0 if len(content) == int(answer.headers["Content-Length"]) else _TIMED_OUT
        except urllib.error.HTTPError as error:
            error.close()
            return _HTTP_ERROR, ""
        except OSError:
            return _NO_CONNECTION, ""
        self.host.files.append(path, content, restart=False)
        return code, ""
