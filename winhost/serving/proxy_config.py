"""The configuration of a proxy in front of the gateway: HAProxy, nginx or Caddy, in Debian's versions.

The proxy passes data on at once in both directions, never repeats a request, and ends its request when the client
disconnects. Its limits are no narrower than those of the gateway, so that the gateway itself refuses a request.
"""

import re
from collections.abc import Callable, Mapping
from ipaddress import ip_address

from winhost.core.dataclass import dataclass
from winhost.gateway.gateway_settings import Limits
from winhost.model.workload import Workload
from winhost.serving.deployed import endpoint
from winhost.serving.engine_files import START_SECONDS

IDLE_CONNECTION_SECONDS = (
    60  # less than the gateway's own limit, so that no request is sent on a connection that it closes
)
_CONNECT_SECONDS = 5

_PATH = re.compile(r"/[A-Za-z0-9._/-]+")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,250}[A-Za-z0-9])?")


@dataclass(frozen=True)
class ProxyRequest:
    """certificate, key: files on the machine of the proxy; HAProxy reads both from one file. gateway_ca: the file with
    the authorities or the certificate that verify the gateway as gateway_name; None: no TLS between proxy and gateway.
    allowed: networks of clients; empty: all.
    """

    workload: Workload
    gateway: tuple[str, int]
    listen: tuple[str, int]
    certificate: str
    key: str | None = None
    gateway_ca: str | None = None
    gateway_name: str | None = None
    plain_http: bool = False
    allowed: tuple[str, ...] = ()
    limits: Limits = Limits()

    @property
    def patience(self) -> int:
        """The timeout in seconds without a byte of an answer. It is longer than a request may wait in the gateway, and
        longer than an engine may start or be silent.
        """
        return max(self.limits.hold + self.limits.silence, START_SECONDS) + 60


def proxy_config(proxy: str, request: ProxyRequest) -> str:
    """Write the configuration. proxy: one of PROXIES. Raises ValueError."""
    _check(proxy, request)
    return _lines("# Written by winhost render proxy.", f"# {INSTALL_NOTES[proxy]}", "") + _WRITERS[proxy](request)


INSTALL_NOTES = {
    "haproxy": "Write it to /etc/haproxy/haproxy.cfg, then: haproxy -c -f /etc/haproxy/haproxy.cfg && "
    "systemctl reload-or-restart haproxy",
    "nginx": "Write it to /etc/nginx/conf.d/winhost.conf, then: nginx -t && systemctl reload-or-restart nginx",
    "caddy": "Write it to /etc/caddy/Caddyfile, then: caddy validate --config /etc/caddy/Caddyfile && "
    "systemctl restart caddy",
}


def _check(proxy: str, request: ProxyRequest) -> None:
    workload = request.workload
    if not workload.trusted_proxies:
        raise ValueError(
            "the gateway would take the proxy for its client: name the proxy's address in the workload, as "
            'trusted_proxies: ["10.20.0.5/32"], and plan anew'
        )
    if workload.proxy_protocol and proxy != "haproxy":
        raise ValueError(
            f"{proxy} says in X-Forwarded-For for whom it asks: take proxy_protocol out of the workload, and plan anew"
        )
    if request.gateway_ca is None and not (ip_address(request.gateway[0]).is_loopback or request.plain_http):
        raise ValueError(
            f"{request.gateway[0]} is beyond the proxy's machine: name --gateway-ca and --gateway-name, or say "
            "--plain-http"
        )
    _check_names(proxy, request)


def _check_names(proxy: str, request: ProxyRequest) -> None:
    """Check the names of files and of the gateway."""
    if (request.gateway_ca is None) is not (request.gateway_name is None):
        raise ValueError("--gateway-ca and --gateway-name go together")
    if proxy == "haproxy" and request.key not in (None, f"{request.certificate}.key"):
        raise ValueError(
            f"the key has to be in {request.certificate} itself, or in {request.certificate}.key, where HAProxy looks "
            "for it: put it there, and leave --certificate-key out"
        )
    if proxy != "haproxy" and request.key is None:
        raise ValueError(f"{proxy} reads the key from a file of its own: name --certificate-key")
    for path in (request.certificate, request.key, request.gateway_ca):
        if path is not None and not _PATH.fullmatch(path):
            raise ValueError(f"{path!r} is no path with letters, digits, dots, dashes and slashes")
    if request.gateway_name is not None and not _NAME.fullmatch(request.gateway_name):
        raise ValueError(f"{request.gateway_name!r} is no name of a host")


def _haproxy(request: ProxyRequest) -> str:
    server = f"    server gateway {endpoint(*request.gateway)}"
    # In either case the proxy drops the client's own header.
    forwarded = "set-header X-Forwarded-For %[src]"
    if request.workload.proxy_protocol:
        server += " send-proxy-v2"
        forwarded = "del-header X-Forwarded-For"
    if request.gateway_ca:
        name = request.gateway_name
        server += f" ssl verify required ca-file {request.gateway_ca} sni str({name}) verifyhost {name}"
    allowed = [f"    tcp-request connection reject unless {{ src {' '.join(request.allowed)} }}"]
    return _lines(
        "global",
        "    log stdout format raw local0",
        "    user haproxy",
        "    group haproxy",
        "    chroot /var/lib/haproxy",
        "    ssl-default-bind-options ssl-min-ver TLSv1.2",
        "",
        "defaults",
        "    mode http",
        "    log global",
        "    option httplog",
        "    option dontlognull",
        "    # Each event of a stream at once.",
        "    option http-no-delay",
        "    # A client that goes away ends the request, and with it the work of the engine.",
        "    option abortonclose",
        "    # Only what reached nobody is sent again.",
        "    retry-on conn-failure",
        f"    timeout connect {_CONNECT_SECONDS}s",
        f"    timeout http-request {request.limits.head}s",
        f"    timeout http-keep-alive {IDLE_CONNECTION_SECONDS}s",
        f"    timeout client {request.patience}s",
        f"    timeout server {request.patience}s",
        "",
        "frontend clients",
        f"    bind {endpoint(*request.listen)} ssl crt {request.certificate} alpn http/1.1",
        *(allowed if request.allowed else ()),
        f"    http-request deny deny_status 413 if {{ req.hdr_val(content-length) gt {request.limits.body_bytes} }}",
        f"    http-request {forwarded}",
        "    default_backend gateway",
        "",
        "backend gateway",
        server,
    )


def _nginx(request: ProxyRequest) -> str:
    tls = [
        "        proxy_ssl_verify on;",
        "        proxy_ssl_verify_depth 4;",
        f"        proxy_ssl_trusted_certificate {request.gateway_ca};",
        "        proxy_ssl_server_name on;",
        f"        proxy_ssl_name {request.gateway_name};",
    ]
    allowed = [*(f"    allow {each};" for each in request.allowed), "    deny all;"]
    return _lines(
        "upstream winhost_gateway {",
        f"    server {endpoint(*request.gateway)};",
        "    keepalive 64;",
        f"    keepalive_timeout {IDLE_CONNECTION_SECONDS}s;",
        "}",
        "",
        "server {",
        f"    listen {endpoint(*request.listen)} ssl;",
        f"    ssl_certificate {request.certificate};",
        f"    ssl_certificate_key {request.key};",
        "    ssl_protocols TLSv1.2 TLSv1.3;",
        *(allowed if request.allowed else ()),
        f"    client_max_body_size {request.limits.body_bytes};",
        f"    client_header_timeout {request.limits.head}s;",
        f"    client_body_timeout {request.limits.receive}s;",
        f"    send_timeout {request.limits.receive}s;",
        f"    keepalive_timeout {IDLE_CONNECTION_SECONDS}s;",
        "    gzip off;",
        "",
        "    location / {",
        f"        proxy_pass {'https' if request.gateway_ca else 'http'}://winhost_gateway;",
        *(tls if request.gateway_ca else ()),
        "        proxy_http_version 1.1;",
        '        proxy_set_header Connection "";',
        "        proxy_set_header Host $host;",
        "        # Not $proxy_add_x_forwarded_for: that keeps what a client wrote.",
        "        proxy_set_header X-Forwarded-For $remote_addr;",
        "        # Each event of a stream at once, and no prompt in a file.",
        "        proxy_buffering off;",
        "        proxy_request_buffering off;",
        "        # A client that goes away ends the request, and with it the work of the engine.",
        "        proxy_ignore_client_abort off;",
        "        proxy_next_upstream off;",
        f"        proxy_connect_timeout {_CONNECT_SECONDS}s;",
        f"        proxy_send_timeout {request.patience}s;",
        f"        proxy_read_timeout {request.patience}s;",
        "    }",
        "}",
    )


def _caddy(request: ProxyRequest) -> str:
    tls = [f"\t\t\ttls_trusted_ca_certs {request.gateway_ca}", f"\t\t\ttls_server_name {request.gateway_name}"]
    allowed = [f"\t@outside not remote_ip {' '.join(request.allowed)}", "\tabort @outside"]
    address, port = request.listen
    return _lines(
        "{",
        "\tadmin off",
        "\tauto_https off",
        "\tservers {",
        "\t\tprotocols h1",
        "\t\ttimeouts {",
        f"\t\t\tread_header {request.limits.head}s",
        f"\t\t\tidle {IDLE_CONNECTION_SECONDS}s",
        "\t\t}",
        "\t}",
        "}",
        "",
        f"https://:{port} {{",
        f"\tbind {address}",
        f"\ttls {request.certificate} {request.key}",
        *(allowed if request.allowed else ()),
        "\trequest_body {",
        f"\t\tmax_size {request.limits.body_bytes}",
        "\t}",
        "\t# No flush_interval -1: with it, a client that goes away does not end the request. Caddy hands on",
        "\t# each event of a stream at once without it, sets X-Forwarded-For, and waits for an answer without a limit.",
        f"\treverse_proxy {'https' if request.gateway_ca else 'http'}://{endpoint(*request.gateway)} {{",
        "\t\ttransport http {",
        "\t\t\tversions 1.1",
        "\t\t\tcompression off",
        f"\t\t\tdial_timeout {_CONNECT_SECONDS}s",
        f"\t\t\tkeepalive {IDLE_CONNECTION_SECONDS}s",
        *(tls if request.gateway_ca else ()),
        "\t\t}",
        "\t}",
        "}",
    )


_WRITERS: Mapping[str, Callable[[ProxyRequest], str]] = {"haproxy": _haproxy, "nginx": _nginx, "caddy": _caddy}
PROXIES = tuple(_WRITERS)


def _lines(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)
