"""A BMC on loopback that speaks as much Redfish as virtual media take, over TLS, and keeps what it was told."""

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from winhost.lab.wire.wsman_endpoint import make_certificate
from winhost.web.server import run_server as running

PASSWORD = "canary-of-the-bmc"
S1, S2 = "/redfish/v1/Systems/1", "/redfish/v1/Systems/2"
MEDIA = "/redfish/v1/Managers/1/VirtualMedia"
CD = f"{MEDIA}/CD1"


@dataclass
class StandInBmc:
    """things: by path. forgets: what it takes and does not keep; asked: what was sent to it."""

    things: dict[str, dict[str, Any]]
    forgets: set[str] = field(default_factory=set)
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    sessions: set[str] = field(default_factory=set)
    url: str = ""
    ca: str = ""

    def act(self, path: str, body: dict[str, Any]) -> None:
        drive = self.things[CD]
        if path.endswith("InsertMedia") and "media" not in self.forgets:
            drive |= {"Inserted": True, "Image": body["Image"]}
        elif path.endswith("EjectMedia"):
            drive |= {"Inserted": False, "Image": None}

    def patch(self, path: str, body: dict[str, Any]) -> None:
        if "boot" not in self.forgets:
            self.things[path]["Boot"] |= body["Boot"]


def system(place: str, uuid: str, serial: str) -> dict[str, Any]:
    reset = {"#ComputerSystem.Reset": {"target": f"{place}/Actions/ComputerSystem.Reset"}}
    boot = {"BootSourceOverrideEnabled": "Disabled", "BootSourceOverrideTarget": "None"}
    managed = {"ManagedBy": [{"@odata.id": "/redfish/v1/Managers/1"}]}
    return {"@odata.id": place, "UUID": uuid, "SerialNumber": serial, "Actions": reset, "Boot": boot, "Links": managed}


def things(*systems: dict[str, Any]) -> dict[str, dict[str, Any]]:
    actions = {
        f"#VirtualMedia.{name}": {"target": f"{CD}/Actions/VirtualMedia.{name}"}
        for name in ("InsertMedia", "EjectMedia")
    }
    rows = {
        "/redfish/v1/": {"Systems": {"@odata.id": "/redfish/v1/Systems"}, "Links": {"Sessions": {"@odata.id": "/s"}}},
        "/redfish/v1/Systems": {"Members": [{"@odata.id": each["@odata.id"]} for each in systems]},
        "/redfish/v1/Managers/1": {"VirtualMedia": {"@odata.id": MEDIA}},
        MEDIA: {"Members": [{"@odata.id": f"{MEDIA}/USB1"}, {"@odata.id": CD}]},
        f"{MEDIA}/USB1": {"@odata.id": f"{MEDIA}/USB1", "MediaTypes": ["USBStick"], "Inserted": False},
        CD: {"@odata.id": CD, "MediaTypes": ["CD", "DVD"], "Inserted": False, "Actions": actions},
    }
    return rows | {each["@odata.id"]: each for each in systems}


class _Handler(BaseHTTPRequestHandler):
    bmc: StandInBmc
    timeout = 30

    def log_message(self, *_: object) -> None:
        pass

    def _body(self) -> Any:
        length = int(self.headers.get("Content-Length") or 0)
        return json.loads(self.rfile.read(length) or b"{}")

    def _say(self, status: int, body: object = None, **headers: str) -> None:
        data = json.dumps(body).encode() if body is not None else b""
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(data)),
            **headers,
        }.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def _is_in(self) -> bool:
        return self.headers.get("X-Auth-Token") in self.bmc.sessions

    def do_GET(self) -> None:
        path = self.path.rstrip("/") if self.path != "/redfish/v1/" else self.path
        if path not in self.bmc.things or (path != "/redfish/v1/" and not self._is_in()):
            return self._say(404 if self._is_in() else 401)
        return self._say(200, self.bmc.things[path])

    def do_POST(self) -> None:
        body = self._body()
        if self.path.rstrip("/") in ("/s", "/redfish/v1/SessionService/Sessions"):
            if body.get("Password") != PASSWORD:
                return self._say(401, {})
            self.bmc.sessions.add("a-session")
            return self._say(201, {}, X_Auth_Token="a-session", Location="/s/1")
        if not self._is_in():
            return self._say(401)
        self.bmc.asked.append(("POST", self.path, body))
        self.bmc.act(self.path, body)
        return self._say(204)

    def do_PATCH(self) -> None:
        body = self._body()
        self.bmc.asked.append(("PATCH", self.path, body))
        self.bmc.patch(self.path, body)
        self._say(200, {})

    def do_DELETE(self) -> None:
        self.bmc.sessions.clear()
        self._say(204)


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever does not trust it hangs up."""


@contextmanager
def served_bmc(bmc: StandInBmc, folder: Path) -> Iterator[StandInBmc]:
    handler = type("Handler", (_Handler,), {"bmc": bmc})
    made = make_certificate()
    (folder / "ca.pem").write_bytes(made.certificate)
    (folder / "pair.pem").write_bytes(made.key + made.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "pair.pem")
    with _Server(("127.0.0.1", 0), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        with running(server):
            bmc.url, bmc.ca = f"https://127.0.0.1:{server.server_port}", str(folder / "ca.pem")
            yield bmc
