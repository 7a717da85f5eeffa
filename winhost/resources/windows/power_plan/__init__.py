"""Power plans, and when they let the host sleep on AC power."""

from winhost.resources.base import ResourceType, State, resource
from winhost.resources.values import Value

NEVER_SLEEP = 0
_MAX_SECONDS = (1 << 32) - 1
SECONDS = Value(
    "a number of seconds, or 0 for never", lambda value: type(value) is int and NEVER_SLEEP <= value <= _MAX_SECONDS
)


@resource(
    ResourceType("PowerPlan", title="power plans", key=("scheme",), sets={"standby": SECONDS, "hibernate": SECONDS})
)
class PowerPlan(State):
    """A power plan by the GUID of its scheme, so that rollback finds it even if another plan is active by then.

    active: Windows uses this plan now; standby, hibernate: idle seconds after which the host sleeps or hibernates on AC
    power, 0 for never. Settings for battery power are neither read nor changed. modern_standby: the computer has S0 low
    power idle instead of S3; equal in all plans. Whether a standby of 0 keeps such a host awake is unverified.
    """

    name: str
    active: bool
    standby: int
    hibernate: int
    modern_standby: bool
