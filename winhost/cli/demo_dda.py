"""The main job: DDA on a Windows Server, and a Windows 11 beside it that is told what it can do instead.

Then a second server, on which winhost makes the VM for the GPUs.
"""

import time
from collections.abc import Mapping
from contextlib import chdir
from typing import Any

from winhost.cli.demo_endpoint import ServedDemo, served_demo
from winhost.cli.demo_steps import SCALE, Demo, chapter, environment, require, run, say
from winhost.lab.hostfile import find
from winhost.lab.running_lab import KEY, Lab
from winhost.model.units import MiB

HOST, DESK, VM = "gpu-01", "desk-01", "llm-01"
OTHER, NEW_VM, IMAGE = "gpu-03", "llm-02", "ubuntu.img"
FILES = ("server2025-3gpu", "win11-pro-1gpu", "server2025-role-installed")
CONSENTS = "vm-stop,restart,force-dismount"
HOW_THEY_ANSWER = {
    "contract": "They run no PowerShell: they answer the agent's JSON contract",
    "pwsh": "They run the real scripts in this computer's PowerShell, against stand-ins for the cmdlets of Windows,",
}


class DdaDemo(Demo):
    """Three simulated hosts; the first is changed, its controller killed, and given back; the last gets a VM."""

    def play(self) -> None:
        began = time.monotonic()
        say("Simulated hosts, served over real PowerShell remoting (WSMan on loopback, NTLM, one of them on HTTPS).")
        say(f"{HOW_THEY_ANSWER[self.engine]} and enforce the Windows restrictions that matter.")
        with (
            Lab([find(name) for name in FILES], self.folder, scale=SCALE, tls=(HOST,), engine=self.engine) as lab,
            environment(
                WINHOST_FLEET=str(lab.fleet_file),
                WINHOST_STATE=str(self.folder / "state"),
                WINHOST_CACHE=str(self.folder / "cache"),
            ),
        ):
            found = lab.hosts[HOST].machine.settled_state()
            self.look()
            self.change(lab)
            self.give_back(lab, found)
            self.make_a_vm(lab)
        say(f"Done in {time.monotonic() - began:.0f} s. The same commands do the same on a real host.")

    def look(self) -> None:
        chapter("1. Read both hosts; nothing is changed")
        run("detect", HOST, DESK)
        chapter("2. What works here, and why not the rest?")
        run("assess", HOST)
        run("assess", DESK, "--path", "dda", expect=3)
        run("assess", DESK)
        chapter("3. What would change, and how is it undone?")
        run("plan", HOST, "--vm", VM, "-o", str(self.plan))
        run("plan", DESK, "--path", "dda", expect=3)

    def change(self, lab: Lab) -> None:
        chapter("4. Apply the plan, and kill winhost halfway")
        self.apply_and_kill(HOST, CONSENTS)
        name = self.run_of(HOST)
        run("runs")
        chapter("5. Resume where it was interrupted")
        run("resume", name, "--yes")
        chapter("6. Verify the result")
        run("verify", str(self.plan))
        machine = lab.hosts[HOST].machine
        seen = machine.guest_sees(next(guid for guid, vm in machine.vms.items() if vm.name == VM))
        say(f"The guest of {VM} sees {len(seen)} GPUs, so they fit its MMIO windows: {', '.join(seen)}.")
        require(len(seen) == 3, "the guest does not see its three GPUs")

    def give_back(self, lab: Lab, found: Mapping[str, Any]) -> None:
        chapter("7. Roll the host back")
        run("rollback", self.run_of(HOST), "--accept", CONSENTS, "--yes")
        now = lab.hosts[HOST].machine.settled_state()
        require(now == found, f"{HOST} is not in its original state")
        say(f"Compared with its original state, resource by resource: {len(found)} resources, no difference.")
        bodies = sum(endpoint.unencrypted_bodies for endpoint in lab.endpoints.values())
        require(bodies == 0, "a body crossed HTTP unencrypted")

    def make_a_vm(self, lab: Lab) -> None:
        """The image is empty but for what makes it a disk: a simulated host does not look into it."""
        chapter("8. No VM for the GPUs? winhost makes one, serves a model from it, and takes all of it back")
        if self.real:
            lab.linuxes[OTHER].real = self.real.address
        with served_demo(self.folder, self.real) as served:
            self._make_a_vm(lab, served)

    def _make_a_vm(self, lab: Lab, served: ServedDemo) -> None:
        machine = lab.hosts[OTHER].machine
        found, plan, image = machine.settled_state(), str(self.folder / "new-vm.json"), self.folder / IMAGE
        image.write_bytes((bytes(510) + b"\x55\xaa").ljust(64 * MiB, b"\0"))
        say("Without --image it would be Ubuntu's newest, downloaded by the SHA-256 that Canonical signed.")
        sizes = ("--cpus", "16", "--memory", "64GiB", "--disk", "200GiB")
        guest = ("--ssh-key", str(lab.folder / f"{KEY}.pub"), "--user", "admin")
        with chdir(self.folder):
            disk = ("--image", f"./{IMAGE}", "--upload", "http")
            run("plan", OTHER, "--new-vm", NEW_VM, *sizes, *disk, *guest, *served.words, "-o", plan)
        run("apply", plan, "--accept", f"{CONSENTS},network", "--yes")
        made = next(vm for vm in machine.vms.values() if vm.name == NEW_VM)
        seen = machine.guest_sees(made.guid)
        say(f"{NEW_VM} is made, was set up over SSH and runs, and its guest sees {len(seen)} GPUs.")
        require(len(seen) == 3, "the guest of the new VM does not see its three GPUs")
        require(lab.hosts[OTHER].linux.guests.own_key(made), "the guest still shows the key that was on a CD")
        say("Its first host key was known before it answered, and gave way to one that never left it.")
        served.ask(OTHER)
        run("rollback", self.run_of(OTHER), "--accept", f"{CONSENTS},vm-turn-off,data", "--yes")
        require(machine.settled_state() == found, f"{OTHER} is not in its original state")
        say("The VM, its disk and the uploaded image are gone, and the GPUs are back on the host.")
