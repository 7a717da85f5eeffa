"""WS-Management messages: requests, answers, and the faults of WinRM."""

from __future__ import annotations

import base64
import enum
import uuid
from collections.abc import Sequence
from xml.etree import ElementTree

from pypsrp.shell import CommandState
from pypsrp.wsman import NAMESPACES, WSManAction

from winhost.core.dataclass import dataclass

Element = ElementTree.Element

_FAULT_ACTION = "http://schemas.dmtf.org/wbem/wsman/1/wsman/fault"


class Action(enum.Enum):
    CREATE = WSManAction.CREATE
    COMMAND = WSManAction.COMMAND
    SEND = WSManAction.SEND
    RECEIVE = WSManAction.RECEIVE
    SIGNAL = WSManAction.SIGNAL
    DELETE = WSManAction.DELETE
    LOGON = "logon"  # no WSMan message: a logon that is about to succeed


class WSManFault(Exception):
    """The answer is a SOAP fault with HTTP 500, as with WinRM."""

    def __init__(self, code: int, subcode: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.subcode = subcode
        self.reason = reason


def timeout_fault() -> WSManFault:
    """Return ERROR_WSMAN_OPERATION_TIMEDOUT: no output within OperationTimeout. Clients then send another Receive."""
    reason = "The WS-Management service cannot complete the operation within the time specified in OperationTimeout."
    return WSManFault(2150858793, "TimedOut", reason)


def shell_not_found_fault(shell_id: str) -> WSManFault:
    """Return ERROR_WSMAN_UNEXPECTED_SELECTORS for a missing shell."""
    reason = (
        f"The request for the Windows Remote Shell with ShellId {shell_id} failed because the shell was not found on "
        "the server. Possible causes are: the specified ShellId is incorrect or the shell no longer exists on the "
        "server. Provide the correct ShellId or create a new shell and retry the operation."
    )
    return WSManFault(2150858843, "InvalidSelectors", reason)


def command_not_found_fault() -> WSManFault:
    """Return the fault of a missing command. Its code is that of a missing shell, as with WinRM."""
    reason = (
        "The Windows Remote Shell received a request to perform an operation on a command identifier that does not "
        "exist. Either the command has completed execution or the client specified an invalid command identifier."
    )
    return WSManFault(2150858843, "InvalidSelectors", reason)


def quota_fault() -> WSManFault:
    """Return ERROR_WSMAN_QUOTA_MAX_SHELLS."""
    reason = (
        "The WS-Management service cannot process the request. The maximum number of concurrent shells for this user "
        "has been exceeded. Close existing shells or raise the quota for this user."
    )
    return WSManFault(2150859173, "QuotaLimit", reason)


def internal_fault(error: BaseException) -> WSManFault:
    """Return the fault for an error of the endpoint itself."""
    return WSManFault(1359, "InternalError", f"The lab's endpoint failed: {error!r}")


@dataclass(frozen=True)
class Request:
    """One message of a client. Identifiers are as the client wrote them, or ""."""

    action: Action
    message_id: str
    resource_uri: str
    shell_id: str
    operation_timeout: float  # seconds
    max_envelope_bytes: int
    body: Element

    def text(self, path: str) -> str:
        """Return the text of an optional element."""
        return (self.body.findtext(path, "", NAMESPACES) or "").strip()

    def content(self, path: str) -> Element:
        """Return the element of the body at `path`, which has pypsrp's prefixes."""
        match = self.body.find(path, NAMESPACES)
        assert match is not None, f"no {path}"
        return match

    def data(self, path: str) -> bytes:
        """Return the bytes in the element at `path`."""
        return base64.b64decode(self.content(path).text or "")


def read_request(data: bytes) -> Request:
    """Parse a message of pypsrp or pywinrm. Raises ValueError for an unknown action, or an error of the libraries."""
    # The sender has logged on, and is on this computer. Since 2.4.1, expat limits the expansion of entities.
    envelope = ElementTree.fromstring(data)  # noqa: S314
    header, body = envelope.find("s:Header", NAMESPACES), envelope.find("s:Body", NAMESPACES)
    assert header is not None
    assert body is not None
    return Request(
        action=Action(header.findtext("wsa:Action", "", NAMESPACES)),
        message_id=header.findtext("wsa:MessageID", "", NAMESPACES),
        resource_uri=header.findtext("wsman:ResourceURI", "", NAMESPACES),
        shell_id=header.findtext("wsman:SelectorSet/wsman:Selector[@Name='ShellId']", "", NAMESPACES),
        operation_timeout=float(header.findtext("wsman:OperationTimeout", "", NAMESPACES).strip("PTS")),
        max_envelope_bytes=int(header.findtext("wsman:MaxEnvelopeSize", "", NAMESPACES)),
        body=body,
    )


def write_answer(request: Request, body: Sequence[Element]) -> bytes:
    return _write_envelope(f"{request.action.value}Response", request.message_id, body)


def write_fault(fault: WSManFault, relates_to: str) -> bytes:
    """Write a fault. relates_to: the id of the failed message, "" if it could not be read."""
    subcode = element("s:Subcode", [element("s:Value", f"w:{fault.subcode}")])
    message = element("wsmanfault:Message", fault.reason)
    detail = element("wsmanfault:WSManFault", [message], Code=str(fault.code), Machine="localhost")
    parts = [
        element("s:Code", [element("s:Value", "s:Receiver"), subcode]),
        element("s:Reason", [element("s:Text", fault.reason, **{tag("xml:lang"): "en-US"})]),
        element("s:Detail", [detail]),
    ]
    return _write_envelope(_FAULT_ACTION, relates_to, [element("s:Fault", parts)])


def _write_envelope(action: str, relates_to: str, body: Sequence[Element]) -> bytes:
    header = [
        element("wsa:Action", action),
        element("wsa:MessageID", f"uuid:{str(uuid.uuid4()).upper()}"),
        element("wsa:To", "http://schemas.xmlsoap.org/ws/2004/08/addressing/role/anonymous"),
        element("wsa:RelatesTo", relates_to),
    ]
    envelope = element("s:Envelope", [element("s:Header", header), element("s:Body", body)])
    written: bytes = ElementTree.tostring(envelope, encoding="utf-8")
    return written


def shell_created(request: Request, shell_id: str, owner: str, address: str) -> list[Element]:
    # Clients copy the selectors of all later requests from here.
    selector = element("wsman:Selector", shell_id, Name="ShellId")
    uri = element("wsman:ResourceURI", request.resource_uri)
    parameters = element("wsa:ReferenceParameters", [uri, element("wsman:SelectorSet", [selector])])
    shell = {"ShellId": shell_id, "ResourceUri": request.resource_uri, "Owner": owner}
    shell |= {name: request.text(f"rsp:Shell/rsp:{name}") for name in ("InputStreams", "OutputStreams")}
    return [
        element("wst:ResourceCreated", [element("wsa:Address", address), parameters]),
        element("rsp:Shell", [element(f"rsp:{name}", text) for name, text in shell.items()]),
    ]


def command_started(command_id: str) -> list[Element]:
    return [element("rsp:CommandResponse", [element("rsp:CommandId", command_id)])]


def output_received(
    command_id: str, chunks: Sequence[tuple[str, bytes]], done: bool, exit_code: int | None = None
) -> list[Element]:
    """Return the body of an answer to Receive. command_id: "" for the shell itself; chunks: stream name and data."""
    attributes = {"CommandId": command_id} if command_id else {}
    parts = [
        element("rsp:Stream", base64.b64encode(chunk).decode("ascii"), Name=name, **attributes)
        for name, chunk in chunks
    ]
    if command_id:
        code = [element("rsp:ExitCode", str(exit_code))] if exit_code is not None else []
        state = CommandState.DONE if done else CommandState.RUNNING
        parts.append(element("rsp:CommandState", code, **attributes, State=state))
    return [element("rsp:ReceiveResponse", parts)]


def element(name: str, content: str | Sequence[Element] = (), **attributes: str) -> Element:
    """Make an element with a text or with child elements. name: with a prefix of pypsrp."""
    created = Element(tag(name), attributes)
    if isinstance(content, str):
        created.text = content
    else:
        created.extend(content)
    return created


def tag(name: str) -> str:
    """Convert `prefix:local`, with a prefix of pypsrp, to ElementTree's name."""
    prefix, local = name.split(":")
    return f"{{{NAMESPACES[prefix]}}}{local}"
