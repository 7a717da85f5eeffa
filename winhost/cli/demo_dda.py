"""The main job: DDA on a Windows Server, and a Windows 11 beside it that is told what it can do instead."""

import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import click

from winhost.cli.demo_steps import SCALE, Demo, chapter, environment, require, run, say
from winhost.lab.hostfile import find
from winhost.lab.running_lab import Lab

HOST, DESK, VM = "gpu-01", "desk-01", "llm-01"
FILES = ("server2025-3gpu", "win11-pro-1gpu")
CONSENTS = "vm-stop,restart,force-dismount"
KILL_AFTER = 9  # journal lines: in the middle of the second stage, after the restart
HOW_THEY_ANSWER = {
    "contract": "They run no PowerShell: they answer the agent's JSON contract",
    "pwsh": "They run the real scripts in this computer's PowerShell, against stand-ins for the cmdlets of Windows,",
}


class DdaDemo(Demo):
    """Two simulated hosts; the first is changed, its controller killed, and given back."""

    def play(self) -> None:
        began = time.monotonic()
        say(
            "Two simulated hosts, served over real PowerShell remoting (WSMan on loopback, NTLM, one of them on HTTPS)."
        )
        say(f"{HOW_THEY_ANSWER[self.engine]} and enforce the Windows restrictions that matter.")
        with (
            Lab([find(name) for name in FILES], self.folder, scale=SCALE, tls=(HOST,), engine=self.engine) as lab,
            environment(WINHOST_FLEET=str(lab.fleet_file), WINHOST_STATE=str(self.folder / "state")),
        ):
            found = lab.hosts[HOST].machine.settled_state()
            self.look()
            self.change(lab)
            self.give_back(lab, found)
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
        self.apply_and_kill()
        name = self.only_run()
        run("runs")
        chapter("5. Resume where it was interrupted")
        run("resume", name, "--yes")
        chapter("6. Verify the result")
        run("verify", str(self.plan))
        machine = lab.hosts[HOST].machine
        seen = machine.guest_sees(next(guid for guid, vm in machine.vms.items() if vm.name == VM))
        say(f"The guest of {VM} sees {len(seen)} GPUs, so they fit its MMIO windows: {', '.join(seen)}.")
        require(len(seen) == 3, "the guest does not see its three cards")

    def apply_and_kill(self) -> None:
        """A second process does the run, and is killed without a warning once its journal has so many lines."""
        arguments = ["apply", str(self.plan), "--accept", CONSENTS, "--yes"]
        click.secho(f"\n$ winhost {' '.join(arguments)}", bold=True)
        controller = subprocess.Popen([sys.executable, "-m", "winhost", *arguments])  # noqa: S603 - ourselves
        try:
            while controller.poll() is None and self.journal_lines() < KILL_AFTER:
                time.sleep(0.005)
            require(controller.poll() is None, "the run was over before it could be killed")
        finally:
            controller.kill()
            controller.wait()
        say(f"Killed after {self.journal_lines()} lines of its journal. The host was not told.")

    def journal_lines(self) -> int:
        journals = (self.folder / "state" / "runs").glob("*.jsonl")
        return sum(path.read_bytes().count(b"\n") for path in journals)

    def give_back(self, lab: Lab, found: Mapping[str, Any]) -> None:
        chapter("7. Roll the host back")
        run("rollback", self.only_run(), "--accept", CONSENTS, "--yes")
        now = lab.hosts[HOST].machine.settled_state()
        require(now == found, f"{HOST} is not in its original state")
        say(f"Compared with its original state, resource by resource: {len(found)} resources, no difference.")
        bodies = sum(endpoint.unencrypted_bodies for endpoint in lab.endpoints.values())
        require(bodies == 0, "a body crossed HTTP unencrypted")
