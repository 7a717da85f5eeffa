"""The HTTP of both libraries for WSMan: guarded, without redirects and proxies, and with the same trusted CAs."""

import logging
import os
import re
import socket
import ssl
from typing import TYPE_CHECKING, Any

from winhost.connect.guard import Guard, connected, guarded
from winhost.connect.logged import logged
from winhost.connect.wire_errors import NO_SESSION, Failure, Unreachable, no_common_method, no_session, one_line
from winhost.model.fleet import Auth, Host

if TYPE_CHECKING:
    from requests import Response, Session

log = logging.getLogger(__name__)

_METHODS = ("Basic", "CredSSP", "Digest", "Kerberos", "Negotiate", "NTLM")
_BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")  # as requests has them: the first one that is set


def trusted(target: Host) -> bool | str:
    """The certificates that a host's is checked against: a bundle, `True` for that of requests, `False` for no check. A
    bundle in fleet.yaml comes first, then one that the environment names.
    """
    verify = target.transport.verify
    if isinstance(verify, bool):
        named = next((os.environ[name] for name in _BUNDLES if os.environ.get(name)), None)
        return named or True if verify else False
    return str(verify)


def guard_session(session: "Session", target: Host, guard: Guard) -> None:
    """Let a session that a library made obey the guard, follow no redirect, and use no proxy.

    Nothing of the environment but a CA bundle changes how a host is reached: proxies and .netrc do not.
    """
    session.trust_env = False
    session.headers["Accept-Encoding"] = "identity"
    session.proxies = {}
    session.verify = trusted(target)
    adapter = _adapter(target, guard)
    session.mount("http://", adapter)
    session.mount("https://", adapter)


def _adapter(target: Host, guard: Guard) -> Any:
    from requests import PreparedRequest
    from requests.adapters import HTTPAdapter
    from urllib3.util.ssl_ import create_urllib3_context

    context = create_urllib3_context(cert_reqs=ssl.CERT_REQUIRED if target.transport.verify else ssl.CERT_NONE)
    context.sslsocket_class = guarded(ssl.SSLSocket, guard)

    class Adapter(HTTPAdapter):
        def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
            super().init_poolmanager(*args, ssl_context=context, **kwargs)
            self.poolmanager.pool_classes_by_scheme = _pools(target, guard)

        def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> "Response":
            guard.ask()
            with logged(log, guard.host, f"HTTP {request.path_url}", logging.DEBUG) as more:
                response = super().send(request, *args, **{**kwargs, "proxies": {}})
                more.append(f"{int(request.headers.get('Content-Length', 0)):,} bytes sent")
                more.append(f"status {response.status_code}")
            try:
                _check(target, guard, response)  # here, because the logon's own messages go through here as well
            except BaseException:
                response.close()
                raise
            return response

    return Adapter()


def _check(target: Host, guard: Guard, response: "Response") -> None:
    """Before anything but its head was read. Raises Unreachable: Redirected, NoSession; AuthenticationFailed."""
    if response.status_code == 401:
        # Without a method that we use, nobody tries any.
        offers = response.headers.get("WWW-Authenticate", "")
        offered = sorted({found for found in _METHODS if re.search(rf"(?:^|,)\s*{found}\b", offers, re.IGNORECASE)})
        auth = target.transport.auth
        ours = {"Basic"} if auth is Auth.BASIC else {"Negotiate", "NTLM"}
        if offered and ours.isdisjoint(offered):
            raise no_common_method(guard.host, offered, auth.value, at=guard.at)
    if 300 <= response.status_code < 400:
        to = one_line(response.headers.get("Location", "nowhere"))[:300]
        detail = f"it answered with a redirect (HTTP {response.status_code}) to {to}"
        raise Unreachable(
            guard.host, detail, at=guard.at, failure=Failure.REDIRECT, code="Redirected", problem=NO_SESSION
        )
    coding = response.headers.get("Content-Encoding", "identity")
    if coding.lower() != "identity":
        # A megabyte of it may be a gigabyte.
        detail = f"it answered in an encoding that it was not asked for ({one_line(coding)[:40]})"
        raise no_session(guard.host, detail, at=guard.at, failure=Failure.NOT_WSMAN)


def _pools(target: Host, guard: Guard) -> dict[str, Any]:
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

    plain = guarded(socket.socket, guard)

    class Connects:
        timeout: Any

        def _new_conn(self) -> Any:
            return connected(guard, target.address, target.transport.port, self.timeout, plain)

    class Plain(Connects, HTTPConnection):
        pass

    class Secure(Connects, HTTPSConnection):
        pass

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    return {"http": PlainPool, "https": SecurePool}
