"""How pods of a workload are kept from everything that serving does not take."""

from winhost.core.answers import Json

USER = 2000
"""`vllm` in vLLM's image; its files belong to the group 0."""


def pod_security() -> dict[str, Json]:
    """As Kubernetes' own standard `restricted` asks. The group of the image's user owns volumes."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": 0,
        "fsGroup": 0,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security(*, writes: bool = True) -> dict[str, Json]:
    """writes: into the file system of its image."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        **({} if writes else {"readOnlyRootFilesystem": True}),
    }


def pod_basics() -> dict[str, Json]:
    """Nothing of the API, and no variables of Services: one called vllm would set VLLM_PORT, which vLLM reads."""
    return {"automountServiceAccountToken": False, "enableServiceLinks": False, "securityContext": pod_security()}
