# key {node: text}   state {ready: bool}
from __future__ import annotations

from winhost.agent.linux_head import *

LONGEST_JOIN = 600.0


@reads("ClusterNode", node=text_check(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", "the name of a node"))
def cluster_nodes(key: Key | None) -> Found:
    require_k3s()
    if key is not None:
        yield key, {"ready": not node_problem(key["node"])}


def node_problem(name: str) -> str:
    """Return why no pod can be scheduled on the node; an empty text if it is ready."""
    if file_status(KUBELET) is None:
        return "the kubelet has not joined"
    done = try_kubectl("--kubeconfig", KUBELET, "get", "node", name, "--output", "json")
    if done.code != 0:
        return (done.errors or done.output).strip()[-500:] or "kubectl says nothing"
    try:
        found: dict[str, Any] = json.loads(done.output)["status"]
        conditions = {each["type"]: each for each in found["conditions"]}
        ready = conditions["Ready"]
        return "" if ready["status"] == "True" else str(ready.get("message") or "it is not ready")[:500]
    except (ValueError, KeyError, TypeError):
        return "the API server tells something else than a node"


@changes("ClusterNode", "ready")
def await_node(key: Key, desired: State, how: State) -> None:
    limit = float(how.get("within") or LONGEST_JOIN)
    with waiting(f"waiting for the node to be ready, for up to {limit:.0f} s"):
        why = poll(lambda: node_problem(key["node"]), limit)
    if why:
        message = f"{key['node']} is no ready node of its cluster: {why}"
        raise AgentFault("Winhost.NodeNotReady", "ObjectNotFound", message)
