"""Environments of Python out of wheels, by the real agent in a sandbox; the wheels are the test's own."""

import hashlib
import io
import stat
import zipfile
from collections.abc import Mapping
from typing import Any

import pytest

from tests.linux.sandbox import Sandbox
from winhost.connect.agent import Agent
from winhost.connect.wire_errors import RemoteError
from winhost.resources.linux.models import NO_VENV

pytestmark = pytest.mark.real

FOLDER = "/opt/winhost/python-0123456789abcdef"
KEY = {"folder": FOLDER}
SOURCE = "/srv/wheels"
HELLO = {
    "hello/__init__.py": "def main():\n    print('hello', __file__)\n    return 3\n",
    "hello-1.0.dist-info/entry_points.txt": "[console_scripts]\nhello = hello:main\n../evil = a:b\nbad = a b:c\n",
    "hello-1.0.data/scripts/tool": "#!python\n",
    "hello-1.0.data/headers/hello.h": "x",
    "hello-1.0.data/purelib/more.py": "more = 1\n",
}


def wheel(sandbox: Sandbox, name: str, files: Mapping[str, str], **modes: int) -> str:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for path, text in files.items():
            info = zipfile.ZipInfo(path)
            info.external_attr = modes.get("mode", stat.S_IFREG | 0o644) << 16
            archive.writestr(info, text)
    place = sandbox.path(f"{SOURCE}/{name}")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data.getvalue())
    return f"sha256:{hashlib.sha256(data.getvalue()).hexdigest()} {len(data.getvalue())} {name}"


@pytest.fixture
def version(sandbox: Sandbox) -> str:
    said = sandbox.run("python3", "-c", "import sys; print('{}.{}'.format(*sys.version_info))")
    return said.stdout.strip()


def change(agent: Agent, desired: dict[str, Any]) -> Any:
    return agent.set("PythonVenv", KEY, desired, {}, {})


def refused(agent: Agent, desired: dict[str, Any]) -> str:
    with pytest.raises(RemoteError) as caught:
        change(agent, desired)
    return caught.value.fault.code


def test_it_is_made_of_its_wheels_and_taken_away(agent: Agent, sandbox: Sandbox, version: str) -> None:
    wheels = [wheel(sandbox, "packages/a/hello-1.0-py3-none-any.whl", HELLO)]
    desired = {"python": version, "source": SOURCE, "wheels": wheels}
    assert agent.get("PythonVenv", KEY) == NO_VENV
    assert change(agent, desired).after == desired
    ran, site = sandbox.run(f"{FOLDER}/bin/hello"), f"{FOLDER}/lib/python{version}/site-packages"
    assert (ran.returncode, ran.stdout) == (3, f"hello {site}/hello/__init__.py\n")
    assert sandbox.run(f"{FOLDER}/bin/python3", "-c", "import more, sys; print(sys.prefix)").stdout == f"{FOLDER}\n"
    assert {each.name for each in sandbox.path(f"{FOLDER}/bin").iterdir()} & {
        "hello",
        "tool",
        "bad",
        "evil",
        "pip",
    } == {
        "hello",
        "tool",
    }
    assert not [*sandbox.path(FOLDER).rglob("hello.h")]
    assert [*sandbox.path(FOLDER).rglob("*.pyc")], "who runs it may write nothing"
    assert [record.key for record in agent.read(["PythonVenv"])["PythonVenv"]] == [KEY]
    assert change(agent, {"wheels": None}).after == NO_VENV
    assert not sandbox.path(FOLDER).exists()


# As vLLM does before a GPU: its processes are spawned, and import the program anew.
SPAWNS = """\
import multiprocessing, sys
def work():
    print("worked")
def main():
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join(300)
    return child.exitcode
"""


def test_a_command_may_spawn_processes(agent: Agent, sandbox: Sandbox, version: str) -> None:
    files = {"spawns.py": SPAWNS, "spawns-1.0.dist-info/entry_points.txt": "[console_scripts]\nspawns = spawns:main\n"}
    change(
        agent, {"python": version, "source": SOURCE, "wheels": [wheel(sandbox, "spawns-1.0-py3-none-any.whl", files)]}
    )
    ran = sandbox.run(f"{FOLDER}/bin/spawns")
    assert (ran.returncode, ran.stdout) == (0, "worked\n"), ran.stderr
    change(agent, {"wheels": None})


def test_other_wheels_make_it_anew(agent: Agent, sandbox: Sandbox, version: str) -> None:
    first = wheel(sandbox, "hello-1.0-py3-none-any.whl", HELLO)
    second = wheel(sandbox, "other-1.0-py3-none-any.whl", {"other.py": "x = 1\n"})
    change(agent, {"python": version, "source": SOURCE, "wheels": [first]})
    change(agent, {"wheels": [second]})
    assert sandbox.run(f"{FOLDER}/bin/python3", "-c", "import other").returncode == 0
    assert sandbox.run(f"{FOLDER}/bin/python3", "-c", "import hello").returncode == 1
    change(agent, {"wheels": None})


@pytest.mark.parametrize("path", ["../../etc/evil", "/etc/evil", "a//b", "a/./b", "a\\b"])
def test_nothing_leads_out_of_it(agent: Agent, sandbox: Sandbox, version: str, path: str) -> None:
    wheels = [wheel(sandbox, "evil-1.0-py3-none-any.whl", {path: "x"})]
    assert refused(agent, {"python": version, "source": SOURCE, "wheels": wheels}) == "Winhost.WrongState"
    assert not sandbox.path("/etc/evil").exists()
    change(agent, {"wheels": None})


@pytest.mark.parametrize("name", ["evil-1.0.data/scripts/python3", "evil-1.0.data/data/bin/python3"])
def test_the_python_of_the_machine_stays(agent: Agent, sandbox: Sandbox, version: str, name: str) -> None:
    """The Python of an environment is a link to it."""
    wheels = [wheel(sandbox, "evil-1.0-py3-none-any.whl", {name: "#!/bin/sh\n"})]
    assert refused(agent, {"python": version, "source": SOURCE, "wheels": wheels}) == "Winhost.WrongState"
    assert sandbox.run("python3", "-c", "print(1)").stdout == "1\n"
    change(agent, {"wheels": None})


def test_wheels_of_one_family_share_files(agent: Agent, sandbox: Sandbox, version: str) -> None:
    both = [
        wheel(sandbox, f"{name}-1.0-py3-none-any.whl", {"family/__init__.py": "", f"family/{name}.py": "x = 1\n"})
        for name in ("one", "two")
    ]
    change(agent, {"python": version, "source": SOURCE, "wheels": both})
    assert sandbox.run(f"{FOLDER}/bin/python3", "-c", "import family.one, family.two").returncode == 0
    change(agent, {"wheels": None})


def test_no_link_comes_with_it(agent: Agent, sandbox: Sandbox, version: str) -> None:
    wheels = [wheel(sandbox, "evil-1.0-py3-none-any.whl", {"a": "/etc/passwd"}, mode=stat.S_IFLNK | 0o777)]
    assert refused(agent, {"python": version, "source": SOURCE, "wheels": wheels}) == "Winhost.WrongState"
    change(agent, {"wheels": None})


def test_a_wheel_with_another_hash_is_not_unpacked(agent: Agent, sandbox: Sandbox, version: str) -> None:
    line = wheel(sandbox, "hello-1.0-py3-none-any.whl", HELLO)
    other = f"sha256:{'0' * 64} {line.partition(' ')[2]}"
    assert refused(agent, {"python": version, "source": SOURCE, "wheels": [other]}) == "Winhost.NotThisFile"
    assert agent.get("PythonVenv", KEY) == {**NO_VENV, "wheels": []}, "what there is of it can be taken back"
    change(agent, {"wheels": None})
    assert not sandbox.path(f"{FOLDER}.making").exists()


def test_another_python_is_told(agent: Agent, sandbox: Sandbox) -> None:
    line = wheel(sandbox, "hello-1.0-py3-none-any.whl", HELLO)
    assert refused(agent, {"python": "3.2", "source": SOURCE, "wheels": [line]}) == "Winhost.OtherPython"
    change(agent, {"wheels": None})


def test_what_others_made_there_stays(agent: Agent, sandbox: Sandbox, version: str) -> None:
    sandbox.write(f"{FOLDER}/theirs", "x")
    line = wheel(sandbox, "hello-1.0-py3-none-any.whl", HELLO)
    desired = {"python": version, "source": SOURCE, "wheels": [line]}
    assert refused(agent, desired) == "Winhost.NotOurs"
    assert sandbox.path(f"{FOLDER}/theirs").exists()
    sandbox.run("rm", "-r", FOLDER)
