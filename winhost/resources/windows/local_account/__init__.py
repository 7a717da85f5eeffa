"""Local accounts."""

from winhost.core.rules import Condition, DependentRule, KeepIf, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import CONFIG_OF, DISTROS_OF, TASKS_OF
from winhost.resources.values import FLAG


@resource(
    ResourceType(
        "LocalAccount",
        title="local accounts",
        order=280,
        key=("account",),
        sets={"there": FLAG, "administrator": FLAG},
        absent={
            "there": False,
            "sid": None,
            "enabled": False,
            "password_expires": False,
            "administrator": False,
            "ours": False,
            "profile": None,
            "sessions": None,
            "distros": None,
        },
        dependents=(
            DISTROS_OF,
            TASKS_OF,
            DependentRule("AccountRight", on=("account",), unless=("granted", (False,))),
            CONFIG_OF,
        ),
        # An account goes only if it is still the one that was made; for its distros see `DISTROS_OF`.
        undo=UndoRule(
            keep_if=(
                KeepIf(
                    (
                        Condition("there", of="before", one_of=(False,)),
                        Condition("there", one_of=(True,)),
                        Condition("ours", one_of=(False,)),
                    ),
                    "it is not the account that winhost made any more",
                ),
            ),
            remove_if_created={"there": False},
        ),
    )
)
class LocalAccount(State):
    """An account of this Windows. winhost makes one with a secret that nobody keeps, and removes only what it made.

    ours: made by winhost, by the mark in its description; profile: the folder that its first logon made; sessions: of
    people who are logged on with it now; distros: disks of WSL in the profile, or the folders, of one of ours.
    A domain controller has no such accounts.
    """

    there: bool
    sid: str | None
    enabled: bool
    password_expires: bool
    administrator: bool
    ours: bool
    profile: str | None
    sessions: int | None
    distros: int | None
