"""One more host over PowerShell remoting, in CPU time of whoever reads it, against Ansible's `psrp` connection."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from bench.host import NAME
from bench.linux import installed_ansible
from bench.measure import Case
from bench.wire import PASSWORD, USER, AnsweringHost
from tests.processes import started
from winhost.lab.hostfile import find
from winhost.lab.running_lab import Lab
from winhost.lab.wire.wsman_endpoint import Endpoint
from winhost.resources.registry import WINDOWS

FEW, MANY = 1, 17
_ROOT = Path(__file__).parents[1]
_REQUEST = json.dumps({"calls": [{"resource": resource, "verb": "get"} for resource in WINDOWS]})


@contextmanager
def further_host(folder: Path) -> Iterator[Case]:
    """Whole programs, whose children count. The hosts answer both the same, and are a process of their own.

    Ansible is asked to run one command: it reads nothing of the host, and so does less than it would have to.
    """
    ansible = installed_ansible(folder / "ansible") / "ansible"
    serve = [sys.executable, "-m", "bench.fleet"]
    with started(serve, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdin
        assert served.stdout
        ports = json.loads(served.stdout.readline())
        fleet, inventory = _fleet(folder, ports), _inventory(folder, ports)
        start = "from winhost.__main__ import main; main()"
        detect = [sys.executable, "-c", start, "detect", "--fleet", str(fleet), "-o", f"{folder}/facts", "--force"]
        raw = [str(ansible), "-i", str(inventory), "-m", "ansible.builtin.raw", "-a", "hostname", "--forks", "16"]
        yield Case(
            what="winhost detect of one more host, in CPU time",
            against="ansible.builtin.raw over Ansible's psrp connection",
            work=lambda: _further([*detect, "h0"], [*detect, "*"]),
            yardstick=lambda: _further([*raw, "h0"], [*raw, "all"]),
            aim=0.1,
            told=True,
        )
        served.stdin.close()


def _further(few: Sequence[str], many: Sequence[str]) -> float:
    """CPU seconds of each host of `many` beyond those of `few`."""
    return (_cpu(many) - _cpu(few)) / (MANY - FEW)


def _cpu(command: Sequence[str]) -> float:
    before = _children()
    done = subprocess.run(
        command,
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "WINHOST_BENCH": PASSWORD, "ANSIBLE_NOCOLOR": "1"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return _children() - before


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _fleet(folder: Path, ports: Sequence[int]) -> Path:
    transport = {"user": USER, "password": "env:WINHOST_BENCH", "auth": "ntlm", "tls": False}
    hosts = {
        f"h{number}": {"address": "127.0.0.1", "transport": {**transport, "port": port}}
        for number, port in enumerate(ports)
    }
    file = folder / "fleet.yaml"
    file.write_text(yaml.safe_dump({"schema": "winhost.fleet/1", "hosts": hosts}))
    return file


def _inventory(folder: Path, ports: Sequence[int]) -> Path:
    variables = {
        "ansible_connection": "psrp",
        "ansible_host": "127.0.0.1",
        "ansible_user": USER,
        "ansible_password": PASSWORD,
        "ansible_psrp_protocol": "http",
        "ansible_psrp_auth": "ntlm",
        "ansible_psrp_ignore_proxy": True,
    }
    hosts = {f"h{number}": {"ansible_port": port} for number, port in enumerate(ports)}
    file = folder / "inventory.yaml"
    file.write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": variables}}))
    return file


def _serve() -> None:
    """Hosts on ports of their own, until whoever started them closes the pipe."""
    with TemporaryDirectory() as folder, Lab([find(NAME)], Path(folder)) as lab, ExitStack() as opened:
        (host,) = lab.hosts.values()
        answering = AnsweringHost(host.answers, _REQUEST)
        endpoints = [opened.enter_context(Endpoint(answering, {USER: PASSWORD})) for _ in range(MANY)]
        print(json.dumps([endpoint.port for endpoint in endpoints]), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _serve()
