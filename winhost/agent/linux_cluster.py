# Part of the agent: the kubectl of k3s.
from __future__ import annotations

import os

from winhost.agent.linux_agent import NotThereYet, ProgramResult, find_program, run, run_checked

# With this file the kubelet can read its own node, on a server and on an agent node.
KUBELET = "/var/lib/rancher/k3s/agent/kubelet.kubeconfig"


def require_k3s() -> None:
    if find_program("k3s") is None:
        raise NotThereYet("ReleaseFile")


def kubectl(*arguments: str) -> str:
    return run_checked("k3s", "kubectl", *arguments, within=300)


def try_kubectl(*arguments: str) -> ProgramResult:
    return run("k3s", "kubectl", *arguments, within=60)


def kubectl_with_input(text: str, *arguments: str) -> str:
    """Run kubectl with a text on its stdin."""
    read_end, write_end = os.pipe()
    try:
        os.write(write_end, text.encode("utf-8"))  # less than a pipe holds
        os.close(write_end)
        return run_checked("k3s", "kubectl", *arguments, within=60, stdin=read_end)
    finally:
        os.close(read_end)
