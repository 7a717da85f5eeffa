# Part of the agent, k3s: its kubectl, which is there once its program is.
from __future__ import annotations

import os

from winhost.agent.linux_agent import Done, NotThereYet, must, place_of, run

# By it the kubelet may read its own node, on a server as on a node that joined.
KUBELET = "/var/lib/rancher/k3s/agent/kubelet.kubeconfig"


def needs_k3s() -> None:
    if place_of("k3s") is None:
        raise NotThereYet("ReleaseFile")


def kubectl(*words: str) -> str:
    return must("k3s", "kubectl", *words, within=300)


def kubectl_asked(*words: str) -> Done:
    return run("k3s", "kubectl", *words, within=60)


def kubectl_given(text: str, *words: str) -> str:
    """Run kubectl with a text on its stdin."""
    ours, theirs = os.pipe()
    try:
        os.write(theirs, text.encode("utf-8"))  # less than a pipe holds
        os.close(theirs)
        return must("k3s", "kubectl", *words, within=60, given=ours)
    finally:
        os.close(ours)
