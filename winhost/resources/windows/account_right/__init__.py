"""Rights of accounts."""

from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import DISTROS_OF, TASKS_OF
from winhost.resources.values import FLAG


@resource(
    ResourceType(
        "AccountRight",
        title="rights of accounts",
        order=290,
        key=("account", "right"),
        sets={"granted": FLAG},
        after=("LocalAccount",),
        absent={"granted": False},
        dependents=(DISTROS_OF, TASKS_OF),
    )
)
class AccountRight(State):
    """A right of the local security policy, granted to an account by name, or by SID where it is no local one.

    Read: SeBatchLogonRight, SeServiceLogonRight, SeDenyBatchLogonRight; the first two can be granted and taken back. A
    local account can be asked for by its SID, too; it is listed by its name, and a playbook has to call it so. A group
    that has a right is listed by its SID. A group policy of the domain that assigns the right overrides what is set
    here.
    """

    granted: bool
