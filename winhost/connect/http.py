"""HTTP for both WSMan libraries: with a guard, without redirects and proxies, and with the same trusted CAs."""

import logging
import os
import re
import socket
import ssl
from typing import TYPE_CHECKING, Any

from winhost.connect.guard import Guard, connect_socket, guarded_class
from winhost.connect.logged import logged
from winhost.connect.wire_errors import (
    NO_SESSION,
    Failure,
    Unreachable,
    no_common_method_error,
    no_session_error,
    one_line,
)
from winhost.model.fleet import Auth, Host

if TYPE_CHECKING:
    from requests import Response, Session

log = logging.getLogger(__name__)

_METHODS = ("Basic", "CredSSP", "Digest", "Kerberos", "Negotiate", "NTLM")
_BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")  # as in requests, the first one that is set counts


def trusted_certificates(target: Host) -> bool | str:
    """Return the CA bundle for a host: that of fleet.yaml, else one that the environment names, else `True` for that of
    requests; `False` for no check.
    """
    verify = target.transport.verify
    if isinstance(verify, bool):
        named = next((os.environ[name] for name in _BUNDLES if os.environ.get(name)), None)
        return named or True if verify else False
    return str(verify)


def guard_session(session: "Session", target: Host, guard: Guard) -> None:
    """Make a session of a library obey the guard, follow no redirect, and use no proxy. Of the environment only a CA
    bundle is used, no proxies and no .netrc.
    """
    session.trust_env = False
    session.headers["Accept-Encoding"] = "identity"
    session.proxies = {}
    session.verify = trusted_certificates(target)
    adapter = _adapter(target, guard)
    session.mount("http://", adapter)
    session.mount("https://", adapter)


def _adapter(target: Host, guard: Guard) -> Any:
    from requests import PreparedRequest
    from requests.adapters import HTTPAdapter
    from urllib3.util.ssl_ import create_urllib3_context

    context = create_urllib3_context(cert_reqs=ssl.CERT_REQUIRED if target.transport.verify else ssl.CERT_NONE)
    context.sslsocket_class = guarded_class(ssl.SSLSocket, guard)

    class Adapter(HTTPAdapter):
        def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
            super().init_poolmanager(*args, ssl_context=context, **kwargs)
            self.poolmanager.pool_classes_by_scheme = _pools(target, guard)

        def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> "Response":
            guard.begin_request()
            with logged(log, guard.host, f"HTTP {request.path_url}", logging.DEBUG) as more:
                response = super().send(request, *args, **{**kwargs, "proxies": {}})
                more.append(f"{int(request.headers.get('Content-Length', 0)):,} bytes sent")
                more.append(f"status {response.status_code}")
            try:
                _check_response(target, guard, response)  # here, because requests of the logon pass here too
            except BaseException:
                response.close()
                raise
            return response

    return Adapter()


def _check_response(target: Host, guard: Guard, response: "Response") -> None:
    """Check the head of a response before its body is read. Raises Unreachable (Redirected, NoSession),
    AuthenticationFailed.
    """
    if response.status_code == 401:
        # Without a common method, the libraries would try none.
        offers = response.headers.get("WWW-Authenticate", "")
        offered = sorted({method for method in _METHODS if re.search(rf"(?:^|,)\s*{method}\b", offers, re.IGNORECASE)})
        auth = target.transport.auth
        supported = {"Basic"} if auth is Auth.BASIC else {"Negotiate", "NTLM"}
        if offered and supported.isdisjoint(offered):
            raise no_common_method_error(guard.host, offered, auth.value, endpoint=guard.endpoint)
    if 300 <= response.status_code < 400:
        location = one_line(response.headers.get("Location", "nowhere"))[:300]
        detail = f"it answered with a redirect (HTTP {response.status_code}) to {location}"
        raise Unreachable(
            guard.host, detail, endpoint=guard.endpoint, failure=Failure.REDIRECT, code="Redirected", problem=NO_SESSION
        )
    coding = response.headers.get("Content-Encoding", "identity")
    if coding.lower() != "identity":
        # Unpacked, a megabyte may be a gigabyte.
        detail = f"it answered in an encoding that it was not asked for ({one_line(coding)[:40]})"
        raise no_session_error(guard.host, detail, endpoint=guard.endpoint, failure=Failure.NOT_WSMAN)


def _pools(target: Host, guard: Guard) -> dict[str, Any]:
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

    plain = guarded_class(socket.socket, guard)

    class Guarded:
        timeout: Any

        def _new_conn(self) -> Any:
            return connect_socket(guard, target.address, target.transport.port, self.timeout, plain)

    class Plain(Guarded, HTTPConnection):
        pass

    class Secure(Guarded, HTTPSConnection):
        pass

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    return {"http": PlainPool, "https": SecurePool}
