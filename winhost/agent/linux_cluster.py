# Part of the agent: the kubectl of k3s.
from __future__ import annotations

import os

from winhost.agent.linux_agent import NotThereYet, ProgramResult, find_program, run, run_checked

# With this file the kubelet can read its own node, on a server and on an agent node.
KUBELET = "/var/lib/rancher/k3s/agent/kubelet.kubeconfig"


def require_k3s() -> None:
    if find_program("k3s") is None:
        raise NotThereYet("ReleaseFile")


def kubectl(*words: str) -> str:
    return run_checked("k3s", "kubectl", *words, within=300)


def try_kubectl(*words: str) -> ProgramResult:
    return run("k3s", "kubectl", *words, within=60)


def kubectl_with_input(text: str, *words: str) -> str:
    """Run kubectl with a text on its stdin."""
    ours, theirs = os.pipe()
    try:
        os.write(theirs, text.encode("utf-8"))  # less than a pipe holds
        os.close(theirs)
        return run_checked("k3s", "kubectl", *words, within=60, stdin=ours)
    finally:
        os.close(ours)
