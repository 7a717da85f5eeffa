"""Each resource type on a real Debian, by the command line: killed within its step, gone on with, and rolled back."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.costly import CASES_ONE_IN
from tests.linux.debian import INSIDE, Debian, Keyring
from tests.linux.debian_disk import NO_LOOPS, debian_with_disk
from tests.linux.every_resource import AWAITED, EVERY, Furnished, entries, furnish
from tests.linux.loops import tool
from tests.processes import PATIENCE_S, started
from winhost.cli import run
from winhost.model.shipped import shipped
from winhost.resources.registry import LINUX

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(2400),
    NO_LOOPS,
]  # they take turns, and one is fetched

Step = list[Any]  # a resource type and a key

HOST = "llm-01"
ACCEPT = ("--accept", "network,data,restart,containers", "--yes")
# What others write as they please: logs, caches, what apt, dpkg and podman know, and what useradd keeps of before.
THEIRS: tuple[str, ...] = ("/tmp", "/var/tmp", "/etc/cni", "/srv/packages", "/var/log", "/var/cache")
THEIRS += tuple(f"/var/lib/{name}" for name in ("apt", "dpkg", "containers", "rancher", "systemd/timers"))
COPIES = tuple(f"/etc/{name}-" for name in ("passwd", "shadow", "group", "gshadow", "subuid", "subgid"))
COPIES += ("/etc/rancher/k3s/k3s.yaml",)  # which k3s wrote
NEXT_KEY = "/etc/ssh/ssh_host_ed25519_key.winhost"
NOT_UNDONE = {"ClusterNode", "DataDisk", "SshHostKey", "ServingReady", "ShownGpus"}  # as their declarations say
AT = 0.15  # seconds after the step has begun


@dataclass(frozen=True)
class World:
    """A controller with its fleet, its state and a plan with every resource type."""

    here: Furnished
    folder: Path

    @property
    def debian(self) -> Debian:
        return self.here.debian

    @property
    def plan(self) -> str:
        return str(self.folder / "plan.json")

    def write(self) -> None:
        """Fleet and playbook."""
        key = (self.debian.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().strip()
        ssh = {"user": "root", "key": f"file:{self.debian.key}", "host_key": key}
        fleet = {"schema": "winhost.fleet/1", "hosts": {HOST: {"kind": "linux", "address": INSIDE, "ssh": ssh}}}
        (self.folder / "fleet.yaml").write_text(json.dumps(fleet))
        book = yaml.safe_load((shipped("playbooks") / "linux.yaml").read_text())
        book["settings"]["engine"] = "none"
        book["resources"] = entries(self.here)
        (self.folder / "linux.yaml").write_text(yaml.safe_dump(book))

    def make_plan(self) -> None:
        words = ["plan", HOST, "--path", "linux", "--playbook", str(self.folder / "linux.yaml"), "--allow-unverified"]
        assert run([*words, "--force", "-o", self.plan]) == 0

    def take_back_the_rest(self) -> None:
        """Undo what no rollback undoes, as the plan says."""
        tool("blkdiscard", "--zeroout", "--force", self.debian.devices[0])
        for kept in (NEXT_KEY, f"{NEXT_KEY}.pub", *AWAITED.values()):
            (self.debian.root / kept.lstrip("/")).unlink(missing_ok=True)

    def bring_about(self, awaited: str) -> None:
        (self.debian.root / AWAITED[awaited].lstrip("/")).touch()

    def apply(self) -> None:
        """Apply without a kill."""
        with started([sys.executable, "-m", "winhost", "apply", self.plan, *ACCEPT]) as controller:
            for awaited in AWAITED:
                while not any(resource == awaited for resource, _ in self.begun()):
                    assert controller.poll() is None
                    time.sleep(0.05)
                self.bring_about(awaited)
        assert controller.returncode == 0

    def packages(self) -> str:
        listed = self.debian.run("dpkg-query", "--show", "--showformat=${db:Status-Abbrev}${Package} ${Version}\n")
        return listed + self.debian.run("apt-mark", "showauto") + self.debian.run("apt-mark", "showhold")

    def files(self) -> dict[str, str]:
        """Mode and owner of each, and its hash or where it leads. Folders that have become empty may stay."""
        root, found = self.debian.root, {}
        for folder, inner, names in os.walk(root):
            at = Path(folder)
            inner[:] = [each for each in inner if f"/{(at / each).relative_to(root)}" not in THEIRS]
            for path in (at / each for each in (*inner, *names)):
                status = path.lstat()
                if path.is_symlink():
                    told = str(path.readlink())
                elif path.is_file():
                    told = sha256(path.read_bytes()).hexdigest()
                else:
                    continue
                found[f"/{path.relative_to(root)}"] = f"{status.st_mode:o} {status.st_uid}:{status.st_gid} {told}"
        return {
            path: told
            for path, told in found.items()
            if path not in {*COPIES, *AWAITED.values()} and not path.startswith(NEXT_KEY)
        }

    def states(self) -> Mapping[str, Any]:
        """Return the states that can be set. A key that the machine makes differs each time."""
        with closing(self.debian.agent()) as agent:
            read = agent.read([name for name in LINUX if name in EVERY and name != "SshHostKey"])
        return {name: sorted(map(repr, told)) if isinstance(told, tuple) else told for name, told in read.items()}

    @property
    def name(self) -> str:
        """Return the name of the last run."""
        return run_names(self.folder)[-1]

    def events(self) -> list[Any]:
        """Return the events of the last run that are written."""
        if not run_names(self.folder):
            return []
        whole = (self.folder / f"state/runs/{self.name}.jsonl").read_bytes().rpartition(b"\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def begun(self, since: int = 0) -> list[Step]:
        begun = (event["step"] for event in self.events()[since:] if event["event"] == "begin")
        return [[step["resource"], step["key"]] for step in begun]

    def first_of_each(self, steps: Sequence[Step]) -> Sequence[Step]:
        """Return the first step of each type in the table."""
        first = [[resource, make(self.here)[0]["key"]] for resource, make in EVERY.items()]
        return [step for step in steps if step in first]

    def killed_at_one(self, steps: Sequence[Step], words: Sequence[str], *, back: bool) -> Step | None:
        """Kill the run at the first of these steps that it begins, before its end is written. Return the step; None
        if it begins none.
        """
        runs, before = run_names(self.folder), 0 if words[0] == "apply" else len(self.events())
        arguments = [sys.executable, "-m", "tests.linux.held_controller", json.dumps(steps), *words, *ACCEPT]
        with started(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as controller:
            step = None
            while step is None:
                if controller.poll() is not None:
                    assert controller.returncode == 0, controller.communicate(timeout=PATIENCE_S)[0]
                    return None
                time.sleep(0.002)
                if words[0] != "apply" or run_names(self.folder) != runs:
                    step = next((each for each in self.begun(since=before) if each in steps), None)
            time.sleep(AT)
            if (list(EVERY).index(step[0]) % 2 == 0) is back:
                self.debian.kill_agent()
            controller.send_signal(signal.SIGKILL)
            controller.communicate(timeout=PATIENCE_S)
        last = self.events()[-1]
        assert last["event"] == "begin"
        assert [last["step"]["resource"], last["step"]["key"]] == step
        if step[0] in AWAITED:
            self.bring_about(step[0])
        return step

    def killed_at_each(self, steps: Sequence[Step], first: Sequence[str], then: str) -> None:
        """Kill a run at each step. The order of steps depends on those that are done. In one direction its agent is
        killed as well, and in the other it goes on alone.
        """
        left, words = list(steps), first
        while left:
            step = self.killed_at_one(left, words, back=then == "rollback")
            assert step is not None, f"it ended before it began: {left}"
            left.remove(step)
            words = (then, self.name)
        assert run([*words, *ACCEPT]) == 0


def run_names(folder: Path) -> list[str]:
    return sorted(path.stem for path in (folder / "state/runs").glob("*.jsonl"))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[World]:
    base, folder = pytestconfig.cache.mkdir("debian") / "base", tmp_path_factory.mktemp("world")
    with (
        debian_with_disk(base, tmp_path_factory.mktemp("debian"), formatted=False) as debian,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("WINHOST_FLEET", str(folder / "fleet.yaml"))
        patch.setenv("WINHOST_STATE", str(folder / "state"))
        made = World(furnish(debian, Keyring(folder / "gpg")), folder)
        made.write()
        yield made


@dataclass(frozen=True)
class Straight:
    """The state before, the state after a run that was not killed, and its steps in both directions, one of each
    type.
    """

    packages: str
    files: Mapping[str, str]
    found: Mapping[str, Any]
    made: Mapping[str, Any]
    there: Sequence[Step]
    back: Sequence[Step]


@pytest.fixture(scope="module")
def straight(world: World) -> Straight:
    packages, files, found = world.packages(), world.files(), world.states()
    world.make_plan()
    world.apply()
    name, made, there = world.name, world.states(), world.begun()
    before = world.events()
    assert run(["apply", world.plan, *ACCEPT]) == 0
    assert (world.name, world.events()) == (name, before), "a second run changes nothing"
    assert run(["rollback", name, *ACCEPT]) == 0
    back = world.begun(since=len(before))
    return Straight(packages, files, found, made, world.first_of_each(there), world.first_of_each(back))


def test_a_run_with_every_resource_type_goes_back_to_the_same_packages_and_files(
    world: World, straight: Straight
) -> None:
    assert {resource for resource, _ in straight.there} == set(EVERY)
    assert {resource for resource, _ in straight.back} == set(EVERY) - NOT_UNDONE
    assert_as_found(world, straight)


def chosen(steps: Sequence[Step], config: pytest.Config) -> Sequence[Step]:
    """Choose as many steps as the option for costly tests says, and always those that wait for something of this
    test.
    """
    several = len(steps) // CASES_ONE_IN[config.option.costly]
    drawn = random.Random(config.option.costly_seed).sample(steps, several)
    return [step for step in steps if step in drawn or step[0] in AWAITED]


def test_killed_in_the_step_of_each_resource_type_it_ends_as_one_that_was_not(
    world: World, straight: Straight, pytestconfig: pytest.Config
) -> None:
    world.take_back_the_rest()
    world.make_plan()
    world.killed_at_each(chosen(straight.there, pytestconfig), ("apply", world.plan), "resume")
    assert world.states() == straight.made
    world.killed_at_each(chosen(straight.back, pytestconfig), ("rollback", world.name), "rollback")
    assert_as_found(world, straight)


def assert_as_found(world: World, straight: Straight) -> None:
    assert world.packages() == straight.packages
    now = world.files()
    every = {*now, *straight.files}
    assert {path for path in every if now.get(path) != straight.files.get(path)} == set()
    states = world.states()
    assert {name for name in states if states[name] != straight.found[name]} == {"DataDisk", "ShownGpus"}
