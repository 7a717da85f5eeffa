"""The runs that are killed at any moment: one table of all worlds."""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.engine import test_linux_restart, test_named
from tests.engine.crash import Case
from tests.engine.guest_world import GuestWorld, guest_world
from tests.engine.linux_world import LinuxWorld, linux_world
from tests.engine.new_vm_world import CONSENTS as NEW_VM_CONSENTS
from tests.engine.new_vm_world import NAME, NewVmWorld, new_vm_world
from tests.engine.sending_world import PIECES, Sent, sent, small_pieces
from tests.engine.test_dual_boot import STAGED, TYPED
from tests.engine.test_dual_boot import plan as dual_boot_plan
from tests.engine.test_wsl2 import CASES as WSL2
from tests.engine.test_wsl2 import NO_DOWNGRADE
from tests.engine.two_machines import TwoMachines, TwoMachinesPlan, two_machines
from tests.engine.ubuntu_world import UbuntuWorld, ubuntu_world
from tests.engine.up_world import nothing_is_left, up_world
from tests.engine.world import PLAYBOOK, World, world
from tests.engine.wsl2_world import Wsl2World
from tests.errors import suppressed
from tests.linux.by_hand import in_linux_by_hand, on_own_linux_by_hand
from tests.serving.one_plan import CONSENTS as ONE_PLAN_CONSENTS
from tests.serving.one_plan import hub_of_model, inside, join, windows
from winhost.engine import planning
from winhost.engine.planning import make_plan
from winhost.engine.run_context import Outcome
from winhost.lab.linux.linux_machine import Linux
from winhost.lab.linux.serving import ServedEngines
from winhost.lab.physics.vm_creation import read_disc
from winhost.model.plan import Plan, PlanRequest
from winhost.paths.playbook import parse_request
from winhost.resources.host import HostFacts

INSTALLED = "server2025-role-installed"
NOT_ROOT = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="run.py wants root, and folders of root's"
)
Make = Callable[[Path], AbstractContextManager[Any]]


def of(make: Callable[..., Any], *words: Any, **changes: Any) -> Make:
    """A world without anything around it. changes: of its attributes."""

    def made(folder: Path) -> AbstractContextManager[Any]:
        here = make(folder, *words)
        for name, value in changes.items():
            setattr(here, name, value)
        return nullcontext(here)

    return made


# ---- DDA


def power_for_others_alone(here: World) -> Plan:
    """Nothing requests a state of the VM's power: who resumes finds it off, and must not take that for how it was."""
    resources = [desired for desired in PLAYBOOK["resources"] if desired["resource"] != "VmPower"]
    request = parse_request(PlanRequest("dda", {**PLAYBOOK, "resources": resources}, "llm-01"))
    return make_plan(HostFacts(here.facts()), request)


def no_record_is_left(here: NewVmWorld) -> None:
    assert not here.machine.software.registry_values


@contextmanager
def behind_nat(folder: Path) -> Iterator[NewVmWorld]:
    """On a host without any switch."""
    here = new_vm_world(folder)
    here.machine.network.switches = []
    here.consents = here.back = (*NEW_VM_CONSENTS, "network")
    yield here


def guest_is_known_by_its_own_key(here: GuestWorld) -> None:
    own = here.guest.distro.host_key
    assert here.machine.own_vms.stored_record("seed", NAME)["host_keys"] == [own]  # type: ignore[index]
    assert own != read_disc(here.made.seeds_at_starts[0] or b"").public_key, "the first one was on a disc"
    assert len(here.machine.devices_in_guest(here.made.guid)) == 3


# ---- files that are sent


@contextmanager
def sending(folder: Path) -> Iterator[Sent]:
    with small_pieces():
        yield sent(folder)


def no_piece_was_sent_twice(here: Sent) -> None:
    assert here.pieces == PIECES


# ---- WSL


def wsl2(name: str) -> Case:
    case = WSL2[name]
    kept = (NO_DOWNGRADE,) if case.stays else ()
    return Case(lambda folder: nullcontext(case.world(folder)), stays=case.stays, kept=kept)


@contextmanager
def in_two_machines(folder: Path) -> Iterator[TwoMachines]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(planning.PLANNERS, "two-machines", lambda: TwoMachinesPlan)
        yield two_machines(folder)


# ---- Ubuntu beside Windows


def with_last_group(make: Callable[..., Any], *words: Any, **changes: Any) -> Make:
    @contextmanager
    def made(folder: Path) -> Iterator[Any]:
        with pytest.MonkeyPatch.context() as patch, of(make, *words, **changes)(folder) as here:
            patch.setenv("WINHOST_LAST_GROUP", "888888")
            yield here

    return made


def resumed_or_installed_anew(here: UbuntuWorld) -> Outcome:
    """An installer that was on its way when the controller died has nobody to ask: Windows comes up again."""
    here.machine.wait_until_ready()
    with suppressed("NotInstalled"):
        return here.resume()
    return here.resume()


def staged(here: World) -> Plan:
    return dual_boot_plan(here, **TYPED, **STAGED)


# ---- Linux


def without_loaded_modules(here: LinuxWorld) -> dict[str, Any]:
    """Whether a module is loaded follows from the next restart, and a rollback does not restart for it."""
    found = here.state()
    modules = [{**record.state, **record.key, "loaded": None} for record in found["KernelModule"]]
    return {**found, "KernelModule": modules}


def restarted_once(here: LinuxWorld) -> None:
    assert here.machine.boot == 2


# ---- one plan to an endpoint


def one_plan(path: str, host: str) -> Case:
    @contextmanager
    def made(folder: Path) -> Iterator[Wsl2World | GuestWorld]:
        folder.mkdir(mode=0o700)
        with hub_of_model() as hub:
            here = windows(folder / "host", path, host)
            here.consents = here.back = ONE_PLAN_CONSENTS
            join(here, folder, hub)
            yield here

    return Case(
        made,
        state=with_what_is_served,
        resumed=it_serves,
        seams=("ContainerImage", "EngineUnit", "ServingReady"),
    )


def with_what_is_served(here: Wsl2World | GuestWorld) -> dict[str, Any]:
    """Also the engines of the Linux that came, and each file of it."""
    found = here.state()
    if isinstance(here, Wsl2World):
        came = found["linux"]
    else:
        # Until its seed is there, nothing on the VM's disk would answer.
        came = any(vm.name == NAME and here.guests.guest(vm) for vm in here.machine.vms.values())
    if not came:
        return found
    linux = inside(here)
    return deepcopy({**found, "engines": linux.part(ServedEngines).units, "files in it": written(linux)})


def written(linux: Linux) -> dict[str, str]:
    """Without what each run has of its own: its marks, and the numbers of inodes, of which a record says only whether
    they are those of its files.
    """
    texts = {path: text for path, text in linux.texts().items() if path != "/var/lib/winhost/marks.txt"}
    for record in [path for path in texts if re.match("/var/lib/winhost/(models|secrets)/", path)]:
        said = json.loads(texts[record])
        marks = said.get("marks") or {"": said.get("mark")}
        for path, mark in marks.items():
            node = linux.disk.node(f"{said['folder']}/{path}" if path else said["path"])
            if mark:
                mark[0] = node is not None and node.inode == mark[0]
        texts[record] = json.dumps(said)
    return texts


def it_serves(here: Wsl2World | GuestWorld) -> None:
    assert inside(here).part(ServedEngines).serves()
    assert len(here.store.runs()) == 1


# ---- the short way


def up_and_down(host: str) -> Case:
    """An upgraded WSL stays."""
    return Case(
        lambda folder: up_world(folder, host),
        stays=("Wsl",),
        resumed=nothing_is_left,
        rolled_back=nothing_is_left,
        costly=True,
    )


CASES: Mapping[str, Case] = {
    # Without the role it restarts and has two stages; with it, a VM runs whose power has to be as it was.
    "dda without the role": Case(of(world)),
    "dda": Case(of(world, INSTALLED)),
    "dda, power for others alone": Case(of(world, INSTALLED), power_for_others_alone),
    "a file that is sent": Case(sending, resumed=no_piece_was_sent_twice),
    "new vm": Case(of(new_vm_world), rolled_back=no_record_is_left),
    "new vm behind nat": Case(behind_nat),
    "guest": Case(of(guest_world), resumed=guest_is_known_by_its_own_key, rolled_back=no_record_is_left),
    # Restarts and no restart, a wire that is cut on the way, and what is there already.
    "wsl2": wsl2("pro"),
    "wsl2, nothing there": wsl2("nothing there"),
    "wsl2, bridged over the wire": wsl2("bridged over the wire itself"),
    "two machines": Case(in_two_machines),
    "dual boot": Case(with_last_group(world, "win11-pro-1gpu", consents=("data",)), staged),
    "dual boot on a disk of its own": Case(with_last_group(world, "win11-second-disk", consents=("data",)), staged),
    "ubuntu": Case(with_last_group(ubuntu_world), resume=resumed_or_installed_anew),
    "ubuntu on a disk of its own": Case(
        with_last_group(ubuntu_world, "win11-second-disk"), resume=resumed_or_installed_anew
    ),
    "linux driver": Case(of(linux_world, "ubuntu-2xl4-no-driver")),
    "linux module": Case(
        of(linux_world, resources=[test_linux_restart.BLACKLIST]), state=without_loaded_modules, resumed=restarted_once
    ),
    "linux unit of one's own": Case(
        of(linux_world, resources=[test_named.FILE, test_named.UNIT]), state=test_named.found
    ),
    "one plan, wsl2": one_plan("wsl2", "win11-hyperv-off-vbs-on"),
    "one plan, dda": one_plan("dda", "server2025-3gpu"),
    "up and down": up_and_down("win11-pro-1gpu"),
    "up and down, with a restart": up_and_down("win11-hyperv-off-vbs-on"),
    "by hand in a wsl": Case(in_linux_by_hand, lambda here: here.made, root=True),
    "by hand on a linux": Case(on_own_linux_by_hand, lambda here: here.made, root=True),
}
