"""The Linux of a new VM: how it is told who may log on, and how what told it that is taken away again."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from ipaddress import ip_address, ip_interface
from typing import Annotated

from pydantic import AfterValidator

from winhost.core.answers import Json, MissingFact, Unavailable, if_available
from winhost.images.seed import GuestAddress, GuestSeed, seed_template
from winhost.model.errors import UsageError, visible
from winhost.model.once import once
from winhost.model.written import Closed
from winhost.paths.setting_values import matching, pack, public_key
from winhost.paths.vm_network import VmNetwork
from winhost.resources.host import HostFacts
from winhost.resources.linux.accounts import SshHostKey
from winhost.resources.linux.read_only import LinuxSystem
from winhost.resources.windows.vms import ATTACHED, RETIRED, USER, VmSeed

Item = Mapping[str, Json]


class Guest(Closed):
    """The settings that the Linux of a new VM gets on its first start, so that winhost can log on over SSH."""

    key: Annotated[str, AfterValidator(public_key)] | None = None
    """The public key of whoever runs winhost. Left out, that of ssh.key in fleet.yaml, else of a pair that winhost
    makes.
    """
    user: Annotated[
        str,
        matching(USER, "a user: lower-case letters, digits, _ and -, a letter or _ first"),
        matching(r"(?!root\Z).*", "another user than root, whom Ubuntu locks out of SSH"),
    ] = "winhost"
    """The user who logs on with that key, and becomes root with sudo. There is no password."""


class GuestDecisions:
    """The desired states of one VM's seed and of its guest, at each stage of the setup.

    The guest is left alone with its seed until it answers. Then it turns cloud-init off, because a start without the
    seed would make it another machine; makes another host key, because the first one was on a CD; both are known while
    either may be shown; and only then the CD goes. After an interruption, the next reading shows how far it is.
    """

    def __init__(self, facts: HostFacts, name: str, guest: Guest, mac: str, network: Callable[[], VmNetwork]) -> None:
        self._facts = facts
        self._key = {"name": name}
        self._guest = guest
        self._mac = mac
        self._network = network

    @property
    def seeds(self) -> tuple[Item, ...]:
        """The seed while it belongs in the VM's drive; once attached, with the values that it was made with."""
        if self._is_past_first_key:
            return ()
        seed = self._seed
        if seed is not None and seed.stage == ATTACHED:
            made_with = {"user": seed.user, "address": seed.address, "template": seed.template}
        else:
            network = self._network()
            _ = network.known_switch  # until that is made there is no VM to put it into
            template = _seed_template(self._key["name"], self._guest, self._mac, network)
            made_with = {"user": self._guest.user, "address": network.address, "template": template}
        return ({**self._key, "stage": ATTACHED, **made_with},)

    @property
    def known_guests(self) -> tuple[Item, ...]:
        """The keys by which the guest is known from its own first key on, and whether the seed can go."""
        if not self._is_past_first_key:
            return ()
        seed, own = self._seed, self._own
        assert seed is not None
        if own is None or seed.stage == RETIRED:
            return ({**self._key, "stage": RETIRED, "host_keys": seed.host_keys},)
        if own.next is not None:
            known = [key for key in seed.host_keys if key != own.next]
            return ({**self._key, "stage": ATTACHED, "host_keys": (*known, own.next)},)
        return ({**self._key, "stage": RETIRED, "host_keys": (own.key,)},)

    @property
    def guests(self) -> tuple[Item, ...]:
        """The guest, once it answers. Raises MissingFact before."""
        self._answering()
        return (self._key,)

    @property
    def first_keys(self) -> tuple[Item, ...]:
        """The first host key, which the guest replaces by its own. Raises MissingFact before the guest answers."""
        self._answering()
        return () if self._is_past_first_key else (self._key,)

    @property
    def own_keys(self) -> tuple[Item, ...]:
        """The host key that the guest made and shows from now on. Raises MissingFact before the guest answers."""
        own = self._answering()
        return ({**self._key, "key": own.next or own.key},) if self._is_past_first_key else ()

    @property
    def is_ready(self) -> bool:
        """Tell whether the guest was set up and its seed is gone."""
        return self._seed is not None and self._seed.stage == RETIRED

    @cached_property
    def _seed(self) -> VmSeed | None:
        return self._facts.find(VmSeed, self._key)

    @cached_property
    def _own(self) -> SshHostKey | None:
        """The guest's host key; None before it first answers. Raises MissingFact where it should and does not."""
        return if_available(lambda: self._facts.the(SshHostKey))

    def _answering(self) -> SshHostKey:
        if self._own is None:
            raise guest_not_ready()
        return self._own

    @property
    def _is_past_first_key(self) -> bool:
        """Tell whether the guest made a key of its own, or the seed is retired or was about to be."""
        seed, own = self._seed, self._own
        if seed is None or not seed.host_keys:
            return False
        if seed.stage == RETIRED:
            return True
        return own is not None and (own.next is not None or own.key != seed.host_keys[0] or seed.stage is None)


def refuse_without_pci_driver(facts: HostFacts) -> None:
    """Refuse a guest without the only driver that shows it what Hyper-V assigns. Raises UsageError: NoPciDriver."""
    with suppress(MissingFact):  # what it does not tell is no reason
        system = facts.the(LinuxSystem)
        if system.pci_hyperv is False:
            raise UsageError(
                "NoPciDriver",
                what=f"the guest's kernel {visible(system.kernel)} has no driver for assigned devices (pci_hyperv)",
                meaning="The GPUs were not taken for it: this guest would not see them.",
                hint="In the guest: sudo apt-get install linux-modules-extra-$(uname -r), or another kernel",
            )


def guest_not_ready() -> MissingFact:
    """The missing fact for whatever waits until the guest is set up."""
    return MissingFact("SshHostKey", Unavailable(VmSeed.resource_type.name))


@once
def _seed_template(name: str, guest: Guest, mac: str, network: VmNetwork) -> str:
    """Its CD without keys, as the host takes it."""
    address = None
    if network.address is not None and network.gateway is not None:
        resolvers = tuple(map(ip_address, network.dns))
        address = GuestAddress(ip_interface(network.address), ip_address(network.gateway), resolvers)
    keys = (guest.key,) if guest.key else ()  # without one the plan is refused
    disc = seed_template(GuestSeed(name, guest.user, keys, mac, address))
    return pack(disc)
