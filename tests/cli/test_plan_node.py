"""winhost plan for a workload in a cluster, as people call it."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Line
from tests.cli.test_render_kubernetes import DIGEST, key, workload
from winhost.cli import cluster_options
from winhost.images import k3s_release

LINUX = Path(__file__).parents[2] / "examples/linux/ubuntu-2xh100.json"
PLAN = ("plan", "--facts", LINUX, "--path", "linux", "--api-key", "alice=env:ALICE", "--digest", DIGEST)

__all__ = ["key"]


@pytest.mark.parametrize(
    ("changed", "words", "said"),
    [
        ({"deploy": "units"}, ("--join", "https://a:6443"), "--join is for a workload with deploy: kubernetes"),
        ({}, ("--join", "https://a:6443"), "--join and --join-token go together"),
        ({}, ("--join", "http://a:6443", "--join-token", "env:T"), "begins with https://"),
        ({}, ("--join", "https://a:6443", "--join-token", "K10abc::server:secret"), "--join-token"),
        ({}, ("--listen", "127.0.0.1:1"), "--listen is not for a workload with deploy: kubernetes"),
        ({"versions": {"vllm": "0.33.0"}}, ("--engine-program", "/opt/vllm"), "--engine-program is not for a workload"),
    ],
)
def test_what_cannot_be_meant_is_told_before_anything_is_asked(
    line: Line, changed: dict[str, Any], words: tuple[str, ...], said: str
) -> None:
    found = line(*PLAN, "--workload", workload(line, **changed), *words)
    assert found.code == 2
    assert said in " ".join(found.err.split())
    assert "K10abc" not in found.out + found.err


def test_options_of_a_cluster_are_for_a_workload(line: Line) -> None:
    found = line("plan", "--facts", LINUX, "--path", "linux", "--k3s-images")
    assert (found.code, "--k3s-images is for a workload" in " ".join(found.err.split())) == (2, True)


def test_defaults_are_those_of_the_release() -> None:
    assert cluster_options.K3S == k3s_release.NEWEST
