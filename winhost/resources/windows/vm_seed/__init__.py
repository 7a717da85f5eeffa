"""Seeds of the VMs that winhost makes."""

from collections.abc import Mapping
from types import MappingProxyType

from winhost.core.answers import Json
from winhost.core.rules import Condition, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.values import INTERFACE, one_of, or_nothing, text, texts

NONE, ATTACHED, RETIRED = "none", "attached", "retired"
USER = r"[a-z_][a-z0-9_-]{0,31}"
# The scripts have it, too.
HOST_KEY = r"ssh-ed25519 [A-Za-z0-9+/]{68}"
NO_SEED: Mapping[str, Json] = MappingProxyType(
    {
        "stage": NONE,
        "user": None,
        "address": None,
        "template": None,
        "host_keys": [],
        "vm": None,
        "neighbours": [],
    }
)
_SET = ("stage", "user", "address", "template", "host_keys")


@resource(
    ResourceType(
        "VmSeed",
        title="the seed of the new VM",
        order=187,
        key=("name",),
        sets={
            "stage": one_of(NONE, ATTACHED, RETIRED),
            "user": or_nothing(text(USER, "the name of a user")),
            "address": or_nothing(INTERFACE),
            "template": or_nothing(text(r"[A-Za-z0-9+/]{4,16384}={0,2}", "a CD without keys, as gzip in base64")),
            "host_keys": texts(HOST_KEY, "a list of ed25519 keys, without names"),
        },
        after=("OwnVm",),
        requires="HyperVRole",
        absent=NO_SEED,
        undo=UndoRule(
            gone_if=((Condition("stage", one_of=(NONE,)),),),
            remove_if_created={name: NO_SEED[name] for name in _SET},
            never="a guest reads its seed on its first start only, and has a key of its own since",
        ),
    )
)
class VmSeed(State):
    """The CD for cloud-init that gives the Linux of a new VM its identity on the first start; it is made when it is put
    in.

    stage: none, attached, or retired, when the CD is gone and what was told of it stays; null where that was begun and
    not finished. template: the CD as it is planned, without the id of the VM and without keys; the host fills them in.
    host_keys: the SSH keys by which the guest is known: the one on the CD, whose private half is nowhere else, then
    those that it made since. user: who may log on; address: where, null for DHCP. vm: its id; neighbours: addresses at
    which the host has seen the network adapter of the VM. Only the system, administrators and that VM read the CD.
    """

    stage: str | None
    user: str | None
    address: str | None
    template: str | None
    host_keys: tuple[str, ...]
    vm: str | None
    neighbours: tuple[str, ...]
