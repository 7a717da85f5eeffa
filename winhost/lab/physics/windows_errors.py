"""Objects and errors as cmdlets return them. An error's category, code and HRESULTs do not depend on the language."""

from collections.abc import Mapping
from functools import partial
from importlib.resources import files
from typing import Any

from winhost.core.answers import Json, RemoteFault
from winhost.core.dataclass import dataclass
from winhost.model.catalogue_file import load_catalogue
from winhost.model.once import once

Properties = Mapping[str, Any]


@dataclass(frozen=True)
class WindowsObject:
    """An object that a cmdlet returns. type: its class in types.yaml; None for a plain hash table."""

    type: str | None
    properties: Properties


@dataclass(frozen=True)
class FileTime:
    """A time, in steps of 100 ns since 1601."""

    ticks: int


def windows_object(type_name: str, **properties: Any) -> WindowsObject:
    """Make an object. Properties that are None are left out: Windows leaves them null."""
    return WindowsObject(type_name, {name: value for name, value in properties.items() if value is not None})


_ANY_EXCEPTION = "0x80131500"
_OWN_HRESULT = "0x80131509"  # InvalidOperationException, in which the scripts wrap their own codes


class CmdletError(Exception):
    """The error of a cmdlet. hresults: of the exception and its inner ones, outermost first, as 0x%08X.

    terminating: the real cmdlet throws this error, where most write theirs and continue.
    """

    def __init__(
        self,
        cmdlet: str,
        category: str,
        code: str,
        hresults: tuple[str, ...],
        message: str,
        *,
        terminating: bool = False,
    ) -> None:
        super().__init__(message)
        self.terminating = terminating
        self.cmdlet = cmdlet
        self.category = category
        self.code = code
        self.hresults = hresults
        self.message = message

    @property
    def fault(self) -> RemoteFault:
        """The error in the form of the facts."""
        return RemoteFault(self.category, self.code, self.hresults, self.cmdlet, self.message)

    def as_json(self) -> dict[str, Json]:
        """Return the error in the form of the agent's answers."""
        return {
            "category": self.category,
            "code": self.code,
            "hresults": list(self.hresults),
            "cmdlet": self.cmdlet,
            "message": self.message,
        }


class MissingDependency(Exception):
    """The call needs another resource to exist first."""

    def __init__(self, resource: str) -> None:
        super().__init__(resource)
        self.resource = resource


def agent_error(code: str, category: str, message: str) -> CmdletError:
    """Return an error of the agent itself."""
    return CmdletError("", category, f"Winhost.{code}", (_OWN_HRESULT,), message)


def refusal(code: str, /, **values: object) -> CmdletError:
    """Return the error with which winhost's scripts refuse a call, by its code in the catalogue."""
    category, text = _catalogue()["refusals"][code]
    return agent_error(code, category, text.format(**values))


def refuse_if(condition: object, code: str, /, **values: object) -> None:
    """Raise CmdletError, the refusal with this code, if the condition holds."""
    if condition:
        raise refusal(code, **values)


bad_request = partial(agent_error, "BadRequest", "InvalidArgument")
not_owned_error = partial(agent_error, "NotOurs", "InvalidOperation")  # winhost did not make it, and so leaves it alone
not_found_error = partial(agent_error, "NotFound", "ObjectNotFound")


def administrator_required(message: str = "Only an administrator can see or change this.") -> CmdletError:
    return agent_error("NotAdministrator", "PermissionDenied", message)


def cmdlet_error(name: str, cmdlet: str, language: str, values: Mapping[str, object]) -> CmdletError:
    """Return the error `name` of the catalogue as this cmdlet raises it.

    A text in another language than English is only marked with the language, so that no code can match on it.
    """
    category, code, hresults, text = _catalogue()["errors"][name]
    command = cmdlet.replace("-", "")
    engine, hyperv = (
        f"Microsoft.PowerShell.Commands.{command}Command",
        f"Microsoft.HyperV.PowerShell.Commands.{command}",
    )
    mark = "" if language.startswith("en") else f"[{language}] "
    return CmdletError(
        cmdlet=cmdlet,
        category=category,
        code=code.format(cmdlet=cmdlet, command=command, engine=engine, hyperv=hyperv),
        hresults=tuple(hresults or [_ANY_EXCEPTION]),
        message=mark + text.format(**values),
        terminating=name in _catalogue()["terminating"],
    )


@once
def _catalogue() -> Mapping[str, Any]:
    catalogue: Mapping[str, Any] = load_catalogue(files(__package__).joinpath("windows_errors.yaml"))
    return catalogue
