"""The cluster service."""

from winhost.resources.base import ResourceType, State, resource


@resource(ResourceType("ClusterService", title="the cluster service", order=390))
class ClusterService(State):
    """Failover clustering on this host: absent, stopped or running."""

    state: str
