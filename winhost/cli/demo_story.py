"""The demo: a desktop from Windows to a model that answers, and back; then a server, whose controller is killed.

What commands say is shown as it is, but for long rows of steps.
"""

import time

from winhost.cli.demo_endpoint import served_demo
from winhost.cli.demo_steps import SCALE, Demo, briefly, chapter, environment, require, run, say
from winhost.lab.hostfile import find
from winhost.lab.running_lab import Lab

DESK, SERVER, VM = "desk-01", "gpu-01", "llm-01"
FILES = ("win11-pro-1gpu", "server2025-3gpu")
MODEL = "Qwen/Qwen3-8B"
DESK_CONSENTS, CONSENTS = "restart,network,vm-stop,packages,data", "vm-stop,restart,force-dismount"
STAYS = {"Wsl"}  # winhost never downgrades it


class StoryDemo(Demo):
    """Two simulated hosts; each ends as it was found."""

    def play(self) -> None:
        """All of it. Raises DemoFailed."""
        began = time.monotonic()
        say("Two simulated hosts, over real PowerShell remoting and SSH. On your own desktop, leave out --on desk-01.")
        with (
            Lab([find(name) for name in FILES], self.folder, scale=SCALE, engine=self.engine) as lab,
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
        found = machine.settled_state()
        brief("up", MODEL, "--on", DESK, "--yes", "--accept", DESK_CONSENTS)
        brief("chat", DESK, "Say hello")
        brief("down", DESK, "--yes", "--accept", DESK_CONSENTS)
        now = machine.settled_state()
        different = {each for each in {*found, *now} if found.get(each) != now.get(each)}
        require(different == STAYS, f"{DESK} differs from its original state in {', '.join(sorted(different - STAYS))}")
        say(f"Compared with before, resource by resource: {len(found)} resources, no difference but WSL's version.")

    def server(self, lab: Lab) -> None:
        chapter("2. A Windows Server: its GPUs go to a VM, and winhost is killed halfway")
        machine = lab.hosts[SERVER].machine
        found = machine.settled_state()
        brief("plan", SERVER, "--vm", VM, "-o", str(self.plan))
        self.apply_and_kill(SERVER, CONSENTS, shortly=True)
        name = self.run_of(SERVER)
        brief("resume", name, "--yes")
        seen = machine.guest_sees(next(guid for guid, vm in machine.vms.items() if vm.name == VM))
        say(f"The guest of {VM} sees {len(seen)} GPUs, so they fit its MMIO windows: {', '.join(seen)}.")
        require(len(seen) == 3, "the guest does not see its three GPUs")
        brief("rollback", name, "--accept", CONSENTS, "--yes")
        require(machine.settled_state() == found, f"{SERVER} is not in its original state")
        say(f"Compared with before, resource by resource: {len(found)} resources, no difference.")


def brief(*arguments: str) -> None:
    with briefly():
        run(*arguments)
