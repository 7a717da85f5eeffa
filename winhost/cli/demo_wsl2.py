"""The other job: a Windows 11 becomes a Linux endpoint in WSL 2, with nobody at its screen, and Windows again."""

import time
from collections.abc import Mapping
from typing import Any

from winhost.cli.demo_endpoint import ServedDemo, served_demo
from winhost.cli.demo_steps import SCALE, Demo, chapter, environment, require, run, say
from winhost.lab.hostfile import find
from winhost.lab.running_lab import Lab

FILE, HOST = "win11-pro-1gpu", "desk-01"
CONSENTS = "restart,network,vm-stop,data"
# An upgraded WSL stays: winhost never downgrades it, and the plan says so beforehand.
STAYS = {"Wsl"}


class Wsl2Demo(Demo):
    """One simulated Windows 11, and the Linux that comes out of it, reached by a real SSH of its own."""

    def play(self) -> None:
        """All of it. Raises DemoFailed."""

        began = time.monotonic()
        say("A simulated Windows 11, served over real PowerShell remoting, and later its Linux, over real SSH.")
        with (
            Lab([find(FILE)], self.folder, scale=SCALE, engine=self.engine) as lab,
            environment(WINHOST_FLEET=str(lab.fleet_file), WINHOST_STATE=str(self.folder / "state")),
        ):
            found = lab.hosts[HOST].machine.settled_state()
            if self.real:
                lab.linuxes[HOST].real = self.real.address
            with served_demo(self.folder, self.real) as served:
                self.look(lab, served)
                self.change(lab, served)
                self.give_back(lab, found)
        say(f"Done in {time.monotonic() - began:.0f} s. On a real host, downloads take most of the time.")

    def look(self, lab: Lab, served: ServedDemo) -> None:
        """Verdict, plan."""
        chapter("1. What works here?")
        run("assess", HOST)
        chapter("2. What would change, and how is it undone?")
        words = ("--path", "wsl2", "--set", f"access.key={lab.public_key}", *served.words)
        run("plan", HOST, *words, "-o", str(self.plan))

    def change(self, lab: Lab, served: ServedDemo) -> None:
        """Done up to a completion, restarted, verified, and asked again."""
        chapter("3. Apply the plan: from Windows to a model that answers through its gateway")
        run("apply", str(self.plan), "--accept", CONSENTS, "--yes")
        chapter("4. The host restarts and nobody logs on. Is everything still as planned?")
        machine = lab.hosts[HOST].machine
        machine.restart_computer()
        machine.settle()
        run("verify", str(self.plan))
        chapter("5. What serves there, and what it answers")
        run("serve", "status", HOST)
        served.ask(HOST)

    def give_back(self, lab: Lab, found: Mapping[str, Any]) -> None:
        """Roll back to the very state found, except for what the plan said would stay."""
        chapter("6. Roll the host back")
        run("rollback", self.run_of(HOST), "--accept", CONSENTS, "--yes")
        now = lab.hosts[HOST].machine.settled_state()
        different = {resource for resource in {*found, *now} if found.get(resource) != now.get(resource)}
        require(different == STAYS, f"{HOST} differs from its original state in {', '.join(sorted(different - STAYS))}")
        say(
            f"Compared with its original state: {len(found)} resources, no difference but WSL itself, which stays "
            "upgraded."
        )
