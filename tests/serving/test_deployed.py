"""The file that says what is served on a Linux: written and read by the same class."""

import json
from typing import Any

import pytest

from winhost.serving.deployed import Deployed, DeployedEngine, DeployedGateway, NotDeployed

ENGINE: dict[str, Any] = {
    "model": "org/model",
    "served_name": "model",
    "slug": "org-model",
    "unit": "winhost-engine-org-model.service",
    "socket": "/run/winhost-engines/org-model/engine.sock",
    "image": None,
    "version": "0.33.0",
    "profile": "bare-metal",
    "gpus": [0, 1],
    "turns": False,
    "stands_by": None,
}
GATEWAY = {"unit": "winhost-gateway.service", "listen": "127.0.0.1:8443", "tls": False, "yields": False}
DEPLOYED = Deployed((DeployedEngine(**ENGINE),), DeployedGateway(**GATEWAY))  # type: ignore[arg-type]


def test_what_is_written_is_read() -> None:
    assert Deployed.parse(DEPLOYED.text()) == DEPLOYED
    assert json.loads(DEPLOYED.text()) == {"format": 1, "engines": [ENGINE], "gateway": GATEWAY}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"unit": "--no-block"}, "engines.0.unit"),
        ({"unit": "ssh.service"}, "engines.0.unit"),
        ({"socket": "/run/winhost-engines/../x/engine.sock"}, "engines.0.socket"),
        ({"model": "a\nb"}, "engines.0.model"),
        ({"version": "0.33\x1b[2J"}, "engines.0.version"),
        ({"gpus": ["0"]}, "engines.0.gpus"),
        ({"gpus": [True]}, "engines.0.gpus"),
        ({"more": 1}, "engines.0.more"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], says: str) -> None:
    document = {"format": 1, "engines": [{**ENGINE, **change}], "gateway": GATEWAY}
    with pytest.raises(NotDeployed, match=says):
        Deployed.parse(json.dumps(document))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        "[]",
        '{"format": 2}',
        '{"format": 1, "engines": []}',
        json.dumps({"format": 1, "engines": [ENGINE, ENGINE], "gateway": GATEWAY}),
    ],
)
def test_what_is_no_such_file_is_refused(text: str) -> None:
    with pytest.raises(NotDeployed):
        Deployed.parse(text)
