"""Configurations of proxies: their limits beside the gateway's, and what they are refused for."""

import re
from dataclasses import replace
from typing import Any

import pytest

from tests.rows import each_row
from winhost.gateway.connections import _IDLE_S
from winhost.gateway.gateway_settings import Limits
from winhost.model.workload import Workload
from winhost.serving.engine_files import START_SECONDS
from winhost.serving.proxy_config import IDLE_CONNECTION_SECONDS, PROXIES, ProxyRequest, proxy_config

BEHIND = Workload((), trusted_proxies=("10.20.0.5/32",))
BY_PROTOCOL = replace(BEHIND, proxy_protocol=True)
REQUEST = ProxyRequest(BEHIND, ("127.0.0.1", 8443), ("0.0.0.0", 443), "/etc/ssl/p.pem")


def request(proxy: str, **changes: Any) -> ProxyRequest:
    key = None if proxy == "haproxy" else "/etc/ssl/p.key"
    return replace(REQUEST, **{"key": key, **changes})


@each_row("limits", [Limits(), Limits(hold=7_200, silence=3_600)])
@pytest.mark.parametrize("proxy", PROXIES)
def test_no_limit_is_below_the_gateways(proxy: str, limits: Limits) -> None:
    text = proxy_config(proxy, request(proxy, limits=limits))
    waits = [
        int(found) for found in re.findall(r"(?:timeout (?:server|client)|proxy_(?:read|send)_timeout) (\d+)s", text)
    ]
    assert len(waits) == (0 if proxy == "caddy" else 2)  # Caddy has none by itself
    assert all(each > max(limits.hold + limits.silence, START_SECONDS) for each in waits)
    assert str(limits.body_bytes) in text
    assert not re.search(r"(read|write|response_header)_(timeout|body)|\bwrite\b", text) or proxy == "nginx"


def test_a_proxy_closes_idle_connections_before_the_gateway_does() -> None:
    assert IDLE_CONNECTION_SECONDS < _IDLE_S


REFUSED = {
    "nobody is trusted": ("nginx", {"workload": Workload(())}, "trusted_proxies"),
    "PROXY protocol of nginx": ("nginx", {"workload": BY_PROTOCOL}, "proxy_protocol"),
    "PROXY protocol of Caddy": ("caddy", {"workload": BY_PROTOCOL}, "proxy_protocol"),
    "keys and prompts can be read": ("caddy", {"gateway": ("10.20.0.4", 8443)}, "--gateway-ca"),
    "a name without a certificate": ("caddy", {"gateway_name": "gateway.lan"}, "go together"),
    "a key that HAProxy does not read": ("haproxy", {"key": "/etc/ssl/p.key"}, "/etc/ssl/p.pem.key"),
    "no key": ("nginx", {"key": None}, "--certificate-key"),
    "a path with words": ("nginx", {"certificate": "/etc/p.pem; include /x"}, "is no path"),
    "a name with words": ("haproxy", {"gateway_ca": "/c", "gateway_name": "a) b"}, "no name of a host"),
}


@each_row("proxy,changes,says", REFUSED.values(), ids=REFUSED)
def test_what_would_not_work_is_refused(proxy: str, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        proxy_config(proxy, request(proxy, **changes))


@each_row("proxy", PROXIES)
def test_what_is_said_is_there(proxy: str) -> None:
    plain = proxy_config(proxy, request(proxy, gateway=("fd00::4", 8443), plain_http=True, allowed=("10.0.0.0/8",)))
    assert "[fd00::4]:8443" in plain
    assert "10.0.0.0/8" in plain
    tls = proxy_config(proxy, request(proxy, gateway=("10.20.0.4", 1), gateway_ca="/etc/g.pem", gateway_name="g.lan"))
    assert "/etc/g.pem" in tls
    assert "g.lan" in tls


def test_haproxy_says_for_whom_it_asks_in_one_way() -> None:
    by_header = proxy_config("haproxy", request("haproxy", key="/etc/ssl/p.pem.key"))
    by_protocol = proxy_config("haproxy", request("haproxy", workload=BY_PROTOCOL))
    assert ("set-header X-Forwarded-For %[src]" in by_header, "send-proxy" in by_header) == (True, False)
    assert ("set-header" in by_protocol, "send-proxy-v2" in by_protocol) == (False, True)
