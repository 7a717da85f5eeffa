"""winhost demo: complete jobs on simulated hosts, by the commands that a user would type."""

import tempfile
import time
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any

from winhost.cli.lab.demo_steps import (
    SCALE,
    Demo,
    ServedDemo,
    briefly,
    chapter,
    environment,
    require,
    run,
    say,
    served_demo,
)
from winhost.lab.hostfile import find
from winhost.lab.running_lab import KEY, Lab
from winhost.model.units import MiB

DESK, SERVER, VM = "desk-01", "gpu-01", "llm-01"
STORY_FILES = ("win11-pro-1gpu", "server2025-3gpu")
MODEL = "Qwen/Qwen3-8B"
DESK_CONSENTS, SERVER_CONSENTS = "restart,network,vm-stop,packages,data", "vm-stop,restart,force-dismount"
STAYS = {"Wsl"}  # an upgraded one: winhost never downgrades it, and the plan says so beforehand


class StoryDemo(Demo):
    """Two simulated hosts. Each of them ends as it was found."""

    def play(self) -> None:
        """All of it. Raises DemoFailed."""
        began = time.monotonic()
        say("Two simulated hosts, over real PowerShell remoting and SSH. On your own desktop, leave out --on desk-01.")
        with (
            Lab([find(name) for name in STORY_FILES], self.folder, scale=SCALE, engine=self.engine) as lab,
            environment(WINHOST_FLEET=str(lab.fleet_file), WINHOST_STATE=str(self.folder / "state"), COLUMNS="80"),
            served_demo(self.folder, None),
        ):
            self.desktop(lab)
            self.server(lab)
        chapter("Where to go on")
        say("Your own machine:  winhost up")
        say("Your servers:      winhost host add USER@ADDRESS")
        say("No access at all:  winhost facts import --help")
        say("All of this, in full, and the long way: winhost demo --full")
        say(f"Done in {time.monotonic() - began:.0f} s. On a real host, downloads take most of the time.")

    def desktop(self, lab: Lab) -> None:
        chapter("1. A Windows 11 desktop: from nothing to a model that answers, and back")
        machine = lab.hosts[DESK].machine
        found = machine.comparable_state()
        brief("up", MODEL, "--on", DESK, "--yes", "--accept", DESK_CONSENTS)
        brief("chat", DESK, "Say hello")
        brief("down", DESK, "--yes", "--accept", DESK_CONSENTS)
        now = machine.comparable_state()
        _only_wsl_differs(found, now)
        say(f"Compared with before, resource by resource: {len(found)} resources, no difference but WSL's version.")

    def server(self, lab: Lab) -> None:
        chapter("2. A Windows Server: its GPUs go to a VM, and winhost is killed halfway")
        machine = lab.hosts[SERVER].machine
        found = machine.comparable_state()
        brief("plan", SERVER, "--vm", VM, "-o", str(self.plan))
        self.apply_and_kill(SERVER, SERVER_CONSENTS, shortly=True)
        name = self.run_of(SERVER)
        brief("resume", name, "--yes")
        _all_seen(machine)
        brief("rollback", name, "--accept", SERVER_CONSENTS, "--yes")
        require(machine.comparable_state() == found, f"{SERVER} is not in its original state")
        say(f"Compared with before, resource by resource: {len(found)} resources, no difference.")


def _all_seen(machine: Any) -> None:
    seen = machine.devices_in_guest(next(guid for guid, vm in machine.vms.items() if vm.name == VM))
    say(f"The guest of {VM} sees {len(seen)} GPUs, so they fit its MMIO windows: {', '.join(seen)}.")
    require(len(seen) == 3, "the guest does not see its three GPUs")


def _only_wsl_differs(found: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    different = {each for each in {*found, *now} if found.get(each) != now.get(each)}
    require(different == STAYS, f"{DESK} differs from its original state in {', '.join(sorted(different - STAYS))}")


def brief(*arguments: str) -> None:
    with briefly():
        run(*arguments)


OTHER, NEW_VM, IMAGE = "gpu-03", "llm-02", "ubuntu.img"
DDA_FILES = ("server2025-3gpu", "win11-pro-1gpu", "server2025-role-installed")
HOW_THEY_ANSWER = {
    "contract": "They run no PowerShell: they answer the agent's JSON contract",
    "pwsh": "They run the real scripts in this computer's PowerShell, against stand-ins for the cmdlets of Windows,",
}


class DdaDemo(Demo):
    """Three simulated hosts. The first one is changed, its controller is killed, and it is rolled back; the last one
    gets a VM.
    """

    def play(self) -> None:
        began = time.monotonic()
        say("Simulated hosts, served over real PowerShell remoting (WSMan on loopback, NTLM, one of them on HTTPS).")
        say(f"{HOW_THEY_ANSWER[self.engine]} and enforce the Windows restrictions that matter.")
        with (
            Lab([find(name) for name in DDA_FILES], self.folder, scale=SCALE, tls=(SERVER,), engine=self.engine) as lab,
            environment(
                WINHOST_FLEET=str(lab.fleet_file),
                WINHOST_STATE=str(self.folder / "state"),
                WINHOST_CACHE=str(self.folder / "cache"),
            ),
        ):
            found = lab.hosts[SERVER].machine.comparable_state()
            self.look()
            self.change(lab)
            self.give_back(lab, found)
            self.make_a_vm(lab)
        say(f"Done in {time.monotonic() - began:.0f} s. The same commands do the same on a real host.")

    def look(self) -> None:
        chapter("1. Read both hosts; nothing is changed")
        run("detect", SERVER, DESK)
        chapter("2. What works here, and why not the rest?")
        run("assess", SERVER)
        run("assess", DESK, "--path", "dda", expect=3)
        run("assess", DESK)
        chapter("3. What would change, and how is it undone?")
        run("plan", SERVER, "--vm", VM, "-o", str(self.plan))
        run("plan", DESK, "--path", "dda", expect=3)

    def change(self, lab: Lab) -> None:
        chapter("4. Apply the plan, and kill winhost halfway")
        self.apply_and_kill(SERVER, SERVER_CONSENTS)
        name = self.run_of(SERVER)
        run("runs")
        chapter("5. Resume where it was interrupted")
        run("resume", name, "--yes")
        chapter("6. Verify the result")
        run("verify", str(self.plan))
        _all_seen(lab.hosts[SERVER].machine)

    def give_back(self, lab: Lab, found: Mapping[str, Any]) -> None:
        chapter("7. Roll the host back")
        run("rollback", self.run_of(SERVER), "--accept", SERVER_CONSENTS, "--yes")
        now = lab.hosts[SERVER].machine.comparable_state()
        require(now == found, f"{SERVER} is not in its original state")
        say(f"Compared with its original state, resource by resource: {len(found)} resources, no difference.")
        bodies = sum(endpoint.unencrypted_bodies for endpoint in lab.endpoints.values())
        require(bodies == 0, "a body crossed HTTP unencrypted")

    def make_a_vm(self, lab: Lab) -> None:
        """Plan a new VM. Its image is an empty disk, because a simulated host does not look into it."""
        chapter("8. No VM for the GPUs? winhost makes one, serves a model from it, and takes all of it back")
        if self.real:
            lab.linuxes[OTHER].real = self.real.address
        with served_demo(self.folder, self.real) as served:
            self._make_a_vm(lab, served)

    def _make_a_vm(self, lab: Lab, served: ServedDemo) -> None:
        machine = lab.hosts[OTHER].machine
        found, plan, image = machine.comparable_state(), str(self.folder / "new-vm.json"), self.folder / IMAGE
        image.write_bytes((bytes(510) + b"\x55\xaa").ljust(64 * MiB, b"\0"))
        say("Without --image it would be Ubuntu's newest, downloaded by the SHA-256 that Canonical signed.")
        sizes = ("--cpus", "16", "--memory", "64GiB", "--disk", "200GiB")
        guest = ("--ssh-key", str(lab.folder / f"{KEY}.pub"), "--user", "admin")
        with chdir(self.folder):
            disk = ("--image", f"./{IMAGE}", "--upload", "http")
            run("plan", OTHER, "--new-vm", NEW_VM, *sizes, *disk, *guest, *served.words, "-o", plan)
        run("apply", plan, "--accept", f"{SERVER_CONSENTS},network", "--yes")
        made = next(vm for vm in machine.vms.values() if vm.name == NEW_VM)
        seen = machine.devices_in_guest(made.guid)
        say(f"{NEW_VM} is made, was set up over SSH and runs, and its guest sees {len(seen)} GPUs.")
        require(len(seen) == 3, "the guest of the new VM does not see its three GPUs")
        require(lab.hosts[OTHER].linux.guests.has_new_host_key(made), "the guest still shows the key that was on a CD")
        say("Its first host key was known before it answered, and gave way to one that never left it.")
        served.ask(OTHER)
        run("rollback", self.run_of(OTHER), "--accept", f"{SERVER_CONSENTS},vm-turn-off,data", "--yes")
        require(machine.comparable_state() == found, f"{OTHER} is not in its original state")
        say("The VM, its disk and the uploaded image are gone, and the GPUs are back on the host.")


WSL2_FILE = "win11-pro-1gpu"
WSL2_CONSENTS = "restart,network,vm-stop,data"


class Wsl2Demo(Demo):
    """One simulated Windows 11, and the Linux inside it, which is reached by a real SSH server."""

    def play(self) -> None:
        """All of it. Raises DemoFailed."""

        began = time.monotonic()
        say("A simulated Windows 11, served over real PowerShell remoting, and later its Linux, over real SSH.")
        with (
            Lab([find(WSL2_FILE)], self.folder, scale=SCALE, engine=self.engine) as lab,
            environment(WINHOST_FLEET=str(lab.fleet_file), WINHOST_STATE=str(self.folder / "state")),
        ):
            found = lab.hosts[DESK].machine.comparable_state()
            if self.real:
                lab.linuxes[DESK].real = self.real.address
            with served_demo(self.folder, self.real) as served:
                self.look(lab, served)
                self.change(lab, served)
                self.give_back(lab, found)
        say(f"Done in {time.monotonic() - began:.0f} s. On a real host, downloads take most of the time.")

    def look(self, lab: Lab, served: ServedDemo) -> None:
        """Show the verdict and the plan."""
        chapter("1. What works here?")
        run("assess", DESK)
        chapter("2. What would change, and how is it undone?")
        words = ("--path", "wsl2", "--set", f"access.key={lab.public_key}", *served.words)
        run("plan", DESK, *words, "-o", str(self.plan))

    def change(self, lab: Lab, served: ServedDemo) -> None:
        """Apply the plan up to a completion, restart, verify, and ask again."""
        chapter("3. Apply the plan: from Windows to a model that answers through its gateway")
        run("apply", str(self.plan), "--accept", WSL2_CONSENTS, "--yes")
        chapter("4. The host restarts and nobody logs on. Is everything still as planned?")
        machine = lab.hosts[DESK].machine
        machine.restart_computer()
        machine.wait_until_ready()
        run("verify", str(self.plan))
        chapter("5. What serves there, and what it answers")
        run("serve", "status", DESK)
        served.ask(DESK)

    def give_back(self, lab: Lab, found: Mapping[str, Any]) -> None:
        """Roll back to the state that was found, except for what the plan said would stay."""
        chapter("6. Roll the host back")
        run("rollback", self.run_of(DESK), "--accept", WSL2_CONSENTS, "--yes")
        now = lab.hosts[DESK].machine.comparable_state()
        _only_wsl_differs(found, now)
        say(
            f"Compared with its original state: {len(found)} resources, no difference but WSL itself, which stays "
            "upgraded."
        )


_IN_FULL = {"wsl2": Wsl2Demo, "dda": DdaDemo}


def demo(path: str | None, in_full: bool, keep: Path | None, engine: str) -> None:
    played = [_IN_FULL[path]] if path else [*_IN_FULL.values()] if in_full else [StoryDemo]
    for each in played:
        with tempfile.TemporaryDirectory(prefix="winhost-demo-") as temporary:
            folder = (keep or Path(temporary)).absolute()  # one chapter changes into it
            each(folder / each.__name__ if keep and len(played) > 1 else folder, engine).play()
