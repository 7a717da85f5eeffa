"""The known faults of WS-Management: one table for the transports and for `winhost explain`."""

from collections.abc import Mapping

from winhost.core.dataclass import dataclass


@dataclass(frozen=True)
class WsmanFault:
    """A fault of WS-Management. name: its constant in wsmerror.h or winerror.h; kind: what it means for a client:
    `denied`, `busy` (a quota is used up) or `forbidden` (by configuration or policy).
    """

    name: str
    kind: str


FAULTS: Mapping[int, WsmanFault] = {
    5: WsmanFault("ERROR_ACCESS_DENIED", "denied"),
    0x80070005: WsmanFault("E_ACCESSDENIED", "denied"),
    0x803381A5: WsmanFault("ERROR_WSMAN_QUOTA_MAX_SHELLS", "busy"),
    0x803381A6: WsmanFault("ERROR_WSMAN_QUOTA_MAX_OPERATIONS", "busy"),
    0x803381A7: WsmanFault("ERROR_WSMAN_QUOTA_USER", "busy"),
    0x803381A8: WsmanFault("ERROR_WSMAN_QUOTA_SYSTEM", "busy"),
    0x803381AB: WsmanFault("ERROR_WSMAN_QUOTA_MAX_SHELLUSERS", "busy"),
    0x803381E4: WsmanFault("ERROR_WSMAN_QUOTA_MAX_SHELLS_PPQ", "busy"),
    0x803381E5: WsmanFault("ERROR_WSMAN_QUOTA_MAX_USERS_PPQ", "busy"),
    0x803381E6: WsmanFault("ERROR_WSMAN_QUOTA_MAX_PLUGINSHELLS_PPQ", "busy"),
    0x803381E7: WsmanFault("ERROR_WSMAN_QUOTA_MAX_PLUGINOPERATIONS_PPQ", "busy"),
    0x803381E8: WsmanFault("ERROR_WSMAN_QUOTA_MAX_OPERATIONS_USER_PPQ", "busy"),
    0x803381E9: WsmanFault("ERROR_WSMAN_QUOTA_MAX_COMMANDS_PER_SHELL_PPQ", "busy"),
    0x803381AC: WsmanFault("ERROR_WSMAN_REMOTESHELLS_NOT_ALLOWED", "forbidden"),
    0x803381E3: WsmanFault("ERROR_WSMAN_REMOTE_CONNECTION_NOT_ALLOWED", "forbidden"),
}


def kind_of(code: object) -> str | None:
    """Return the kind of a WSMan fault; None for a code that is not in the table."""
    fault = FAULTS.get(code) if isinstance(code, int) else None
    return fault.kind if fault else None


def codes_of(kind: str) -> tuple[int, ...]:
    """Return the codes of a kind, without Win32 errors: a number of one digit is in every log."""
    return tuple(code for code, fault in FAULTS.items() if fault.kind == kind and code >> 31)
