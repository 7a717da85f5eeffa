"""winhost demo: play complete jobs on simulated hosts, with the commands that a user would type."""

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
    chapter,
    environment,
    require,
    run,
    say,
    served_demo,
    summarized_steps,
)
from winhost.lab.hostfile import find
from winhost.lab.running_lab import SSH_KEY_FILE, Lab
from winhost.model.units import MiB

DESK, SERVER, VM = "desk-01", "gpu-01", "llm-01"
STORY_FILES = ("win11-pro-1gpu", "server2025-3gpu")
MODEL = "Qwen/Qwen3-8B"
DESK_CONSENTS, SERVER_CONSENTS = "restart,network,vm-stop,packages,data", "vm-stop,restart,force-dismount"
UPGRADED = {"Wsl"}  # resources that stay upgraded: winhost never downgrades WSL, and the plan says so


class StoryDemo(Demo):
    """Two simulated hosts. Each of them ends in its original state."""

    def play(self) -> None:
        """Play all chapters. Raises DemoFailed."""
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
        original = machine.comparable_state()
        run_brief("up", MODEL, "--on", DESK, "--yes", "--accept", DESK_CONSENTS)
        run_brief("chat", DESK, "Say hello")
        run_brief("down", DESK, "--yes", "--accept", DESK_CONSENTS)
        final = machine.comparable_state()
        _check_only_wsl_differs(original, final)
        say(f"Compared with before, resource by resource: {len(original)} resources, no difference but WSL's version.")

    def server(self, lab: Lab) -> None:
        chapter("2. A Windows Server: its GPUs go to a VM, and winhost is killed halfway")
        machine = lab.hosts[SERVER].machine
        original = machine.comparable_state()
        run_brief("plan", SERVER, "--vm", VM, "-o", str(self.plan))
        self.apply_and_kill(SERVER, SERVER_CONSENTS, summarized=True)
        name = self.run_of(SERVER)
        run_brief("resume", name, "--yes")
        _check_guest_gpus(machine)
        run_brief("rollback", name, "--accept", SERVER_CONSENTS, "--yes")
        require(machine.comparable_state() == original, f"{SERVER} is not in its original state")
        say(f"Compared with before, resource by resource: {len(original)} resources, no difference.")


def _check_guest_gpus(machine: Any) -> None:
    guest_gpus = machine.devices_in_guest(next(guid for guid, vm in machine.vms.items() if vm.name == VM))
    say(f"The guest of {VM} sees {len(guest_gpus)} GPUs, so they fit its MMIO windows: {', '.join(guest_gpus)}.")
    require(len(guest_gpus) == 3, "the guest does not see its three GPUs")


def _check_only_wsl_differs(original: Mapping[str, Any], final: Mapping[str, Any]) -> None:
    different = {each for each in {*original, *final} if original.get(each) != final.get(each)}
    require(
        different == UPGRADED, f"{DESK} differs from its original state in {', '.join(sorted(different - UPGRADED))}"
    )


def run_brief(*arguments: str) -> None:
    with summarized_steps():
        run(*arguments)


NEW_VM_HOST, NEW_VM, IMAGE = "gpu-03", "llm-02", "ubuntu.img"
DDA_FILES = ("server2025-3gpu", "win11-pro-1gpu", "server2025-role-installed")
ENGINE_TEXTS = {
    "contract": "They run no PowerShell: they answer the agent's JSON contract",
    "pwsh": "They run the real scripts in this computer's PowerShell, against stand-ins for the cmdlets of Windows,",
}


class DdaDemo(Demo):
    """Three simulated hosts. winhost changes the first one, is killed, resumes, and rolls it back; the last one gets a
    VM.
    """

    def play(self) -> None:
        began = time.monotonic()
        say("Simulated hosts, served over real PowerShell remoting (WSMan on loopback, NTLM, one of them on HTTPS).")
        say(f"{ENGINE_TEXTS[self.engine]} and enforce the Windows restrictions that matter.")
        with (
            Lab([find(name) for name in DDA_FILES], self.folder, scale=SCALE, tls=(SERVER,), engine=self.engine) as lab,
            environment(
                WINHOST_FLEET=str(lab.fleet_file),
                WINHOST_STATE=str(self.folder / "state"),
                WINHOST_CACHE=str(self.folder / "cache"),
            ),
        ):
            original = lab.hosts[SERVER].machine.comparable_state()
            self.assess_and_plan()
            self.change(lab)
            self.give_back(lab, original)
            self.make_vm(lab)
        say(f"Done in {time.monotonic() - began:.0f} s. The same commands do the same on a real host.")

    def assess_and_plan(self) -> None:
        chapter("1. Read both hosts; nothing is changed")
        run("detect", SERVER, DESK)
        chapter("2. Which options work here, and why do the others not?")
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
        _check_guest_gpus(lab.hosts[SERVER].machine)

    def give_back(self, lab: Lab, original: Mapping[str, Any]) -> None:
        chapter("7. Roll the host back")
        run("rollback", self.run_of(SERVER), "--accept", SERVER_CONSENTS, "--yes")
        final = lab.hosts[SERVER].machine.comparable_state()
        require(final == original, f"{SERVER} is not in its original state")
        say(f"Compared with its original state, resource by resource: {len(original)} resources, no difference.")
        bodies = sum(endpoint.unencrypted_bodies for endpoint in lab.endpoints.values())
        require(bodies == 0, "a body crossed HTTP unencrypted")

    def make_vm(self, lab: Lab) -> None:
        """Plan a new VM. Its image is an empty disk, because a simulated host does not read it."""
        chapter("8. No VM for the GPUs? winhost makes one, serves a model from it, and takes all of it back")
        if self.real:
            lab.ssh_endpoints[NEW_VM_HOST].gateway_address = self.real.address
        with served_demo(self.folder, self.real) as served:
            self._play_new_vm(lab, served)

    def _play_new_vm(self, lab: Lab, served: ServedDemo) -> None:
        machine = lab.hosts[NEW_VM_HOST].machine
        original, plan, image = machine.comparable_state(), str(self.folder / "new-vm.json"), self.folder / IMAGE
        image.write_bytes((bytes(510) + b"\x55\xaa").ljust(64 * MiB, b"\0"))
        say("Without --image it would be Ubuntu's newest, downloaded by the SHA-256 that Canonical signed.")
        sizes = ("--cpus", "16", "--memory", "64GiB", "--disk", "200GiB")
        guest = ("--ssh-key", str(lab.folder / f"{SSH_KEY_FILE}.pub"), "--user", "admin")
        with chdir(self.folder):
            disk = ("--image", f"./{IMAGE}", "--upload", "http")
            run("plan", NEW_VM_HOST, "--new-vm", NEW_VM, *sizes, *disk, *guest, *served.plan_options, "-o", plan)
        run("apply", plan, "--accept", f"{SERVER_CONSENTS},network", "--yes")
        vm = next(vm for vm in machine.vms.values() if vm.name == NEW_VM)
        guest_gpus = machine.devices_in_guest(vm.guid)
        say(f"{NEW_VM} is made, was set up over SSH and runs, and its guest sees {len(guest_gpus)} GPUs.")
        require(len(guest_gpus) == 3, "the guest of the new VM does not see its three GPUs")
        require(
            lab.hosts[NEW_VM_HOST].linux.guests.has_new_host_key(vm), "the guest still shows the key that was on a CD"
        )
        say("Its first host key was known before it answered, and gave way to one that never left it.")
        served.test(NEW_VM_HOST)
        run("rollback", self.run_of(NEW_VM_HOST), "--accept", f"{SERVER_CONSENTS},vm-turn-off,data", "--yes")
        require(machine.comparable_state() == original, f"{NEW_VM_HOST} is not in its original state")
        say("The VM, its disk and the uploaded image are gone, and the GPUs are back on the host.")


WSL2_FILE = "win11-pro-1gpu"
WSL2_CONSENTS = "restart,network,vm-stop,data"


class Wsl2Demo(Demo):
    """One simulated Windows 11, and its Linux behind a real SSH server."""

    def play(self) -> None:
        """Play all chapters. Raises DemoFailed."""

        began = time.monotonic()
        say("A simulated Windows 11, served over real PowerShell remoting, and later its Linux, over real SSH.")
        with (
            Lab([find(WSL2_FILE)], self.folder, scale=SCALE, engine=self.engine) as lab,
            environment(WINHOST_FLEET=str(lab.fleet_file), WINHOST_STATE=str(self.folder / "state")),
        ):
            original = lab.hosts[DESK].machine.comparable_state()
            if self.real:
                lab.ssh_endpoints[DESK].gateway_address = self.real.address
            with served_demo(self.folder, self.real) as served:
                self.assess_and_plan(lab, served)
                self.change(lab, served)
                self.give_back(lab, original)
        say(f"Done in {time.monotonic() - began:.0f} s. On a real host, downloads take most of the time.")

    def assess_and_plan(self, lab: Lab, served: ServedDemo) -> None:
        """Show the verdict and the plan."""
        chapter("1. What works here?")
        run("assess", DESK)
        chapter("2. What would change, and how is it undone?")
        options = ("--path", "wsl2", "--set", f"access.key={lab.public_key}", *served.plan_options)
        run("plan", DESK, *options, "-o", str(self.plan))

    def change(self, lab: Lab, served: ServedDemo) -> None:
        """Apply the plan up to a completion, restart, verify, and send another request."""
        chapter("3. Apply the plan: from Windows to a model that answers through its gateway")
        run("apply", str(self.plan), "--accept", WSL2_CONSENTS, "--yes")
        chapter("4. The host restarts and nobody logs on. Is everything still as planned?")
        machine = lab.hosts[DESK].machine
        machine.restart_computer()
        machine.wait_until_ready()
        run("verify", str(self.plan))
        chapter("5. What serves there, and what it answers")
        run("serve", "status", DESK)
        served.test(DESK)

    def give_back(self, lab: Lab, original: Mapping[str, Any]) -> None:
        """Roll back to the original state, except for what the plan keeps."""
        chapter("6. Roll the host back")
        run("rollback", self.run_of(DESK), "--accept", WSL2_CONSENTS, "--yes")
        final = lab.hosts[DESK].machine.comparable_state()
        _check_only_wsl_differs(original, final)
        say(
            f"Compared with its original state: {len(original)} resources, no difference but WSL itself, which stays "
            "upgraded."
        )


_FULL_DEMOS = {"wsl2": Wsl2Demo, "dda": DdaDemo}


def demo(path: str | None, in_full: bool, keep: Path | None, engine: str) -> None:
    demos = [_FULL_DEMOS[path]] if path else [*_FULL_DEMOS.values()] if in_full else [StoryDemo]
    for each in demos:
        with tempfile.TemporaryDirectory(prefix="winhost-demo-") as temporary:
            folder = (keep or Path(temporary)).absolute()  # absolute, because one chapter changes the working folder
            each(folder / each.__name__ if keep and len(demos) > 1 else folder, engine).play()
