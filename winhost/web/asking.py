"""One question to a server on the internet: bounded in size and time, over TLS, its credentials for one host alone."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urljoin, urlsplit

from winhost.core.dataclass import dataclass
from winhost.model.errors import visible
from winhost.model.secrets import Secret
from winhost.model.units import Bytes, KiB, size

if TYPE_CHECKING:
    from requests import PreparedRequest, Response

_TIMEOUTS_S = (15, 60)
_WITHIN_S = 120.0  # a whole answer: one that drips is not waited for
_MOST_REDIRECTS = 5
_PIECE: Bytes = 64 * KiB
_LEADS_ON = (301, 302, 303, 307, 308)


class NotAnswered(Exception):
    """No answer that can be used. The sentence goes on after the name of the server."""


Credentials = tuple[str, Secret]
"""`Bearer` or `Basic`, and what follows."""


@dataclass(frozen=True)
class OpenAnswer:
    """url: that it came from in the end; headers: by their names in lower case."""

    url: str
    status: int
    headers: Mapping[str, str]
    _response: "Response" = field(repr=False)

    def pieces(self) -> Iterator[bytes]:
        """The body, as it comes."""
        while piece := self._response.raw.read1(_PIECE, decode_content=False):
            yield piece


@dataclass(frozen=True)
class WebAnswer:
    """url: that it came from in the end; headers: by their names in lower case."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes


def ask(
    url: str,
    most: Bytes,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    credentials: Credentials | None = None,
    plain: bool = False,
) -> WebAnswer:
    """The answer, whatever its status, redirects followed as `opened` does. most: how long it may be. Raises
    NotAnswered.
    """
    body = bytearray()
    with opened(url, method=method, headers=headers, credentials=credentials, plain=plain) as answer:
        until = time.monotonic() + _WITHIN_S
        for piece in answer.pieces():
            body += piece
            if len(body) > most:
                raise NotAnswered(f"sends more than {size(most)}")
            if time.monotonic() > until:
                raise NotAnswered(f"sends for more than {_WITHIN_S:.0f} s")
    return WebAnswer(answer.url, answer.status, answer.headers, bytes(body))


@contextmanager
def opened(
    url: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    credentials: Credentials | None = None,
    plain: bool = False,
) -> Iterator[OpenAnswer]:
    """An answer whose body was not read. Redirects are followed, to TLS alone, and without the credentials where they
    lead to another server. plain: also without TLS, for what is known by its hash or signature. Raises NotAnswered,
    also for what goes wrong while it is read.
    """
    first = url_parts(url)
    for _ in range(_MOST_REDIRECTS + 1):
        parts = url_parts(url)
        if not plain and parts.scheme != "https" and not (first.scheme == "http" and is_this_machine(parts)):
            raise NotAnswered(f"leads to {visible((parts.hostname or '')[:200])} without TLS")
        given = credentials if (parts.scheme, parts.netloc) == (first.scheme, first.netloc) else None
        with _one(url, method, dict(headers or {}), given) as answer:
            to = answer.headers.get("location")
            if answer.status not in _LEADS_ON or to is None:
                yield answer
                return
        url = urljoin(url, to)
    raise NotAnswered(f"leads on more than {_MOST_REDIRECTS} times")


def parsed(data: bytes) -> Any:
    """Parse JSON. Raises ValueError, also where it is nested too deep, or has numbers that are too long."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deep") from None


def url_parts(url: str) -> SplitResult:
    """The parts of a URL. Raises NotAnswered."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - it is read to be refused, which raises ValueError
        if parts.scheme in ("https", "http") and parts.hostname and "@" not in parts.netloc:
            return parts
    except ValueError:
        pass
    raise NotAnswered(f"names {visible(url[:200])}, which is no address")


def is_this_machine(parts: SplitResult) -> bool:
    """Nobody else hears what goes there without TLS."""
    if parts.hostname == "localhost":
        return True
    try:
        return ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


@contextmanager
def _one(url: str, method: str, headers: dict[str, str], credentials: Credentials | None) -> Iterator[OpenAnswer]:
    import requests
    from urllib3.exceptions import HTTPError

    def signed(request: "PreparedRequest") -> "PreparedRequest":
        # As `auth`: without it a .netrc would be sent, or replace what is given.
        if credentials is not None:
            request.headers["Authorization"] = f"{credentials[0]} {credentials[1].reveal()}"
        return request

    options: dict[str, Any] = {"allow_redirects": False, "stream": True, "auth": signed}
    headers["Accept-Encoding"] = "identity"
    why = ""
    try:
        with requests.request(method, url, headers=headers, timeout=_TIMEOUTS_S, **options) as response:
            if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise NotAnswered("sends an encoding that it was not asked for")
            named = {name.lower(): value for name, value in response.headers.items()}
            yield OpenAnswer(url, response.status_code, named, response)
            return
    except requests.exceptions.SSLError:
        why = "has a certificate that is not trusted"
    except requests.exceptions.ConnectionError:
        why = "cannot be reached"
    except requests.exceptions.Timeout:
        why = "does not answer in time"
    except (requests.RequestException, HTTPError, ValueError) as error:
        why = f"gives no answer that can be read ({type(error).__name__})"
    # Here, because those errors hold the request with its credentials.
    raise NotAnswered(why)
