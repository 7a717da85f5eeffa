"""Manifests against the schemas that Kubernetes and LeaderWorkerSet publish, over workloads, machines and versions."""

import copy
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.cases import FASTEST
from tests.cluster.clusters import MACHINES, VERSIONS, WORKLOADS, check, made, the
from winhost.cluster.rendering import folder, stream
from winhost.model.errors import RefusedError

ALL = {
    f"{workload}-{machine}-{version}": (workload, machine, version)
    for workload in WORKLOADS
    for machine in MACHINES
    for version in VERSIONS
}
REFUSED = {
    ("over-two-nodes", "wsl"),
    ("by-ray", "wsl"),
    ("two", "wsl"),
    ("with-video", "wsl"),
    ("with-video", "metal"),
    ("with-video", "guest"),
}
"""A node that is alone in its cluster, one device for all GPUs, and GPUs without an encoder."""


@pytest.mark.costly
@pytest.mark.parametrize("case", ALL.values(), ids=ALL)
def test_manifests_fit_the_published_schemas(case: tuple[str, str, str]) -> None:
    workload, machine, version = case
    if (workload, machine) in REFUSED:
        with pytest.raises(RefusedError) as refused:
            made(WORKLOADS[workload], machine)
        assert refused.value.code == "NotInPods"
        return
    found = made(WORKLOADS[workload], machine)
    for manifest in found.manifests:
        check(manifest, version)


@pytest.mark.costly
@pytest.mark.parametrize("workload", WORKLOADS)
def test_what_is_written_is_what_was_made(workload: str) -> None:
    found = made(WORKLOADS[workload], "l4")
    read = [*yaml.load_all(stream(found), FASTEST)]
    assert read == [*found.manifests]
    texts = folder(found)
    listed = yaml.load(texts.pop("kustomization.yaml"), FASTEST)["resources"]
    assert listed == [*texts]
    assert [each for name in listed for each in yaml.load_all(texts[name], FASTEST)] == read


@pytest.mark.parametrize(
    ("kind", "name", "path", "value"),
    [
        ("Deployment", "engine-chat", ("spec", "stratgy"), {"type": "Recreate"}),
        ("Deployment", "engine-chat", ("spec", "replicas"), "one"),
        ("LeaderWorkerSet", "engine-wide", ("spec", "leaderWorkerTemplate", "restartPolicy"), "Always"),
        ("LeaderWorkerSet", "engine-wide", ("spec", "leaderWorkerTemplate", "nodes"), 2),
        ("LeaderWorkerSet", "engine-wide", ("spec", "leaderWorkerTemplate", "workerTemplate", "spec", "gpus"), 2),
    ],
)
def test_the_schemas_find_what_is_wrong(kind: str, name: str, path: tuple[str, ...], value: object) -> None:
    """A check that nothing fails would hold nothing."""
    workload = "over-two-nodes" if kind == "LeaderWorkerSet" else "one"
    wrong: Any = copy.deepcopy(the(made(WORKLOADS[workload]), kind, name))
    at = wrong
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        check(wrong, VERSIONS[0])
