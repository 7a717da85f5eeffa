# key {node: text}   state {ready: bool}
from __future__ import annotations

from winhost.agent.linux_head import *

LONGEST_JOIN = 600.0


@reads("ClusterNode", "node")
def cluster_nodes(key: Key | None) -> Found:
    needs_k3s()
    if key is not None:
        name = matching(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", key["node"], "the name of a node")
        yield {"node": name}, {"ready": cluster_node(name)[0]}


def cluster_node(name: str) -> tuple[bool, str]:
    """Tell whether the node is ready, and why not."""
    if status(KUBELET) is None:
        return False, "the kubelet has not joined"
    done = kubectl_asked("--kubeconfig", KUBELET, "get", "node", name, "--output", "json")
    if done.code != 0:
        return False, (done.errors or done.output).strip()[-500:]
    try:
        found: dict[str, Any] = json.loads(done.output)["status"]
        conditions = {each["type"]: each for each in found["conditions"]}
        ready = conditions["Ready"]
        return ready["status"] == "True", str(ready.get("message", ""))[:500]
    except (ValueError, KeyError, TypeError):
        return False, "the API server tells something else than a node"


@changes("ClusterNode", "ready")
def await_node(key: Key, desired: State, how: State) -> None:
    limit = float(how.get("within") or LONGEST_JOIN)
    over = time.monotonic() + limit
    with waiting(f"waiting for the node to be ready, for up to {limit:.0f} s"):
        while True:
            ready, why = cluster_node(key["node"])
            if ready:
                return
            if time.monotonic() > over:
                message = f"{key['node']} is no ready node of its cluster: {why}"
                raise AgentFault("Winhost.NodeNotReady", "ObjectNotFound", message)
            time.sleep(2)
