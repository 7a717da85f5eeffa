"""Requests to servers on the internet: limited in size and time, over TLS, with credentials for one host alone."""

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urljoin, urlsplit

from winhost.core.dataclass import dataclass
from winhost.model.errors import visible
from winhost.model.secrets import Secret, is_loopback
from winhost.model.units import Bytes, KiB, size

if TYPE_CHECKING:
    from requests import PreparedRequest, Response

_TIMEOUTS_S = (15, 60)
_TOTAL_TIMEOUT_S = 120.0  # for a whole answer, also one that comes slowly
_MAX_REDIRECTS = 5
_PIECE_BYTES: Bytes = 64 * KiB
_REDIRECTS = (301, 302, 303, 307, 308)


class NotAnswered(Exception):
    """There is no usable answer. The message continues a sentence that begins with the name of the server."""


Credentials = tuple[str, Secret]
"""The scheme, `Bearer` or `Basic`, and the value."""


@dataclass(frozen=True)
class OpenAnswer:
    """An answer whose body is not read yet. url: after redirects; headers: by name in lower case."""

    url: str
    status: int
    headers: Mapping[str, str]
    _response: "Response" = field(repr=False)

    def pieces(self) -> Iterator[bytes]:
        """Yield the body as it comes."""
        while piece := self._response.raw.read1(_PIECE_BYTES, decode_content=False):
            yield piece


@dataclass(frozen=True)
class WebAnswer:
    """An answer with its body. url: after redirects; headers: by name in lower case."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes


def fetch(
    url: str,
    limit: Bytes,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    credentials: Credentials | None = None,
    allow_http: bool = False,
) -> WebAnswer:
    """Return the answer, with any status, and after redirects as in `open_url`. limit: the most bytes of its body.
    Raises NotAnswered.
    """
    body = bytearray()
    with open_url(url, method=method, headers=headers, credentials=credentials, allow_http=allow_http) as answer:
        deadline = time.monotonic() + _TOTAL_TIMEOUT_S
        for piece in answer.pieces():
            body += piece
            if len(body) > limit:
                raise NotAnswered(f"sends more than {size(limit)}")
            if time.monotonic() > deadline:
                raise NotAnswered(f"sends for more than {_TOTAL_TIMEOUT_S:.0f} s")
    return WebAnswer(answer.url, answer.status, answer.headers, bytes(body))


@contextmanager
def open_url(
    url: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    credentials: Credentials | None = None,
    allow_http: bool = False,
) -> Iterator[OpenAnswer]:
    """Open a URL, and yield the answer before its body is read. Redirects are followed, to TLS alone, and without the
    credentials if they lead to another server. allow_http: TLS is not needed, because the caller checks a hash or a
    signature. Raises NotAnswered, also for errors while the body is read.
    """
    first = split_url(url)
    for _ in range(_MAX_REDIRECTS + 1):
        parts = split_url(url)
        if (
            not allow_http
            and parts.scheme != "https"
            and not (first.scheme == "http" and is_loopback(parts.hostname or ""))
        ):
            raise NotAnswered(f"leads to {visible((parts.hostname or '')[:200])} without TLS")
        sent_credentials = credentials if (parts.scheme, parts.netloc) == (first.scheme, first.netloc) else None
        with _send(url, method, dict(headers or {}), sent_credentials) as answer:
            location = answer.headers.get("location")
            if answer.status not in _REDIRECTS or location is None:
                yield answer
                return
        url = urljoin(url, location)
    raise NotAnswered(f"leads on more than {_MAX_REDIRECTS} times")


def parse_json(data: bytes) -> Any:
    """Parse JSON. Raises ValueError, also if it is nested too deep, or has too long numbers."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deep") from None


def split_url(url: str) -> SplitResult:
    """Split a URL into its parts. Raises NotAnswered."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises ValueError if it is wrong
        if parts.scheme in ("https", "http") and parts.hostname and "@" not in parts.netloc:
            return parts
    except ValueError:
        pass
    raise NotAnswered(f"names {visible(url[:200])}, which is no address")


def retry_after_s(headers: Mapping[str, str]) -> int | None:
    """Return the seconds of `Retry-After`; None if there is none, or if it is a date."""
    value = headers.get("retry-after", "")
    return int(value) if re.fullmatch(r"[0-9]{1,6}", value) else None


@contextmanager
def _send(url: str, method: str, headers: dict[str, str], credentials: Credentials | None) -> Iterator[OpenAnswer]:
    import requests
    from urllib3.exceptions import HTTPError

    def signed(request: "PreparedRequest") -> "PreparedRequest":
        # This is passed as `auth`. Without it, `requests` would send credentials of a .netrc file.
        if credentials is not None:
            request.headers["Authorization"] = f"{credentials[0]} {credentials[1].reveal()}"
        return request

    options: dict[str, Any] = {"allow_redirects": False, "stream": True, "auth": signed}
    headers["Accept-Encoding"] = "identity"
    reason = ""
    try:
        with requests.request(method, url, headers=headers, timeout=_TIMEOUTS_S, **options) as response:
            if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise NotAnswered("sends an encoding that was not requested")
            lower_headers = {name.lower(): value for name, value in response.headers.items()}
            yield OpenAnswer(url, response.status_code, lower_headers, response)
            return
    except requests.exceptions.SSLError:
        reason = "has a certificate that is not trusted"
    except requests.exceptions.ConnectionError:
        reason = "cannot be reached"
    except requests.exceptions.Timeout:
        reason = "does not answer in time"
    except (requests.RequestException, HTTPError, ValueError) as error:
        reason = f"gives no answer that can be read ({type(error).__name__})"
    # Raised here, because those errors have the request with its credentials as their context.
    raise NotAnswered(reason)
