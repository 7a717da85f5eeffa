"""The Linux that takes turns with Windows on a simulated machine: it has its GPUs, and answers only while it runs."""

import json
from collections.abc import Callable, Iterator, Mapping
from uuid import NAMESPACE_OID, uuid5

from winhost.core.answers import Json, Record
from winhost.lab.linux.guests import linux_gpu, ubuntu
from winhost.lab.linux.linux_answers import LinuxAnswers, Sshd
from winhost.lab.linux.linux_machine import Linux
from winhost.lab.physics.found.firmware import WINDOWS_LOADER, FirmwarePart
from winhost.lab.physics.parts import Part
from winhost.lab.physics.simulated_machine import InstalledLinux, Machine
from winhost.lab.physics.ssh_keys import seed_of
from winhost.lab.physics.wsl_session import Distro
from winhost.model.facts import Facts


class GpusOfMetal(Part):
    """All that Windows has, too."""

    def records(self) -> Mapping[str, Callable[[], Iterator[Record]]]:
        """The call that lists the instances."""
        return {"LinuxGpu": self._gpus}

    def _gpus(self) -> Iterator[Record]:
        found = (linux_gpu(device) for device in self.host.devices)
        for number, state in enumerate(filter(None, found), start=1):
            yield Record(state, {"address": f"0000:{number:02x}:00.0"})


class AnswersBeside(LinuxAnswers):
    """A restart of it is one of the machine."""

    def __init__(self, host: Machine, installed: InstalledLinux) -> None:
        memory = host.instances("Memory")[0].state["total"]
        system = ubuntu(uuid5(NAMESPACE_OID, host.name).hex, memory, secure_boot=True) | {
            "virtualization": "none",
            "pci_hyperv": None,
        }
        facts = Facts(installed.hostname, "synthetic", "", "", {"LinuxSystem": (Record(system),)})
        machine = Machine(facts, clock=host.clock)
        machine.parts.insert(0, GpusOfMetal(host))
        distro = Distro(installed.hostname, "", running=True, systemd=True, sshd=True, enabled=True)
        distro.port, distro.listen = 22, "0.0.0.0"  # noqa: S104 - simulated
        distro.keys, distro.own_seed = list(installed.keys), seed_of(installed.private)
        super().__init__(Linux(machine, distro, own=True))
        self._host = host
        self.linux.reboot = host.restart
        self._timer: int | None = None

    def look(self) -> None:
        """It has started as often as the machine started it."""
        self.machine.boot = self._host.linux.starts
        super().look()

    def told(self, program: str, json_text: str, connection: int) -> str:
        """Answer like any Linux, and answer the program of `winhost boot` too."""
        if program != "boot":
            return super().told(program, json_text, connection)
        return json.dumps({"answers": [self._booted(json.loads(json_text))]})

    def _booted(self, request: Mapping[str, Json]) -> dict[str, Json]:
        boot = self._host.part(FirmwarePart).boot
        self._timer = request.get("timer", self._timer)
        if request.get("to") == "linux":
            boot["next"] = boot["current"]
        if request.get("to") == "windows":
            boot["next"] = next(each["entry"] for each in boot["entries"] if each["path"] == WINDOWS_LOADER)
        self.look()
        told = {name: boot[name] for name in ("current", "next", "order", "entries")}
        if request.get("restart"):
            self._host.restart()
        return {"ok": True, "boot_id": self.linux.boot_id, **told, "timer": self._timer}


class LinuxBeside:
    """The Linux beside Windows on one simulated machine; a new installation knows nothing of the one before."""

    def __init__(self, host: Machine) -> None:
        self._host = host
        self._known: tuple[InstalledLinux, AnswersBeside] | None = None

    def listening(self) -> Sshd | None:
        """None while Windows runs."""
        installed = self._host.linux.installed
        if not self._host.linux.runs or installed is None:
            return None
        if self._known is None or self._known[0] is not installed:
            self._known = (installed, AnswersBeside(self._host, installed))
        answers = self._known[1]
        answers.look()
        host, starts = self._host, self._host.linux.starts
        up = lambda: host.linux.runs and host.linux.starts == starts  # noqa: E731
        return Sshd(answers, installed.user, installed.keys, host, up, answers.came_in())
