"""The stand-in for wsl.exe behaves as wsl.exe is known to, in front of a real Debian."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.linux.distro import ACCOUNT, NAME, STAGED
from tests.linux.test_agent import CTK
from tests.linux.wsl import FAILED, OF_WSL, Wsl
from tests.processes import PATIENCE_S, started
from winhost.paths.distro_containers import CDI_PATH, CDI_PATH_FILE, CDI_SERVICE, CDI_SERVICE_FILE

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]  # they take turns, and one is fetched

IN_DISTRO = ("-d", NAME, "-u", "root", "--cd", "/", "-e")
IMPORTED = ("C:\\distros", STAGED, "--version", "2")
TYPO = "[wsl2]\nnetworkingMode=nat\n\n[ws12]\nmemory=8GB\n"


@pytest.fixture(scope="module")
def imported(wsl: Wsl) -> Wsl:
    wsl.user(ACCOUNT).config = TYPO
    assert wsl.run(ACCOUNT, "--import", NAME, *IMPORTED).returncode == 0
    return wsl


def as_it_comes(wsl: Wsl, *arguments: str, account: str = ACCOUNT, **environment: str) -> tuple[int, bytes, bytes]:
    """Call wsl.exe without an encoding, or with one of its own."""
    there = {name: value for name, value in os.environ.items() if name != "WSL_UTF8"}
    command = [str(wsl.program(account)), *arguments]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, env={**there, **environment}, timeout=PATIENCE_S
    )
    return done.returncode, done.stdout, done.stderr


def inside(wsl: Wsl, *command: str, content: bytes = b"") -> bytes:
    done = wsl.run(ACCOUNT, *IN_DISTRO, *command, content=content)
    assert done.returncode == 0, done.stderr
    return done.stdout


def names(wsl: Wsl, which: str = "--running", account: str = ACCOUNT) -> list[str]:
    return wsl.run(account, "--list", "--quiet", which).stdout.decode().split()


def test_only_whoever_starts_the_vm_is_warned_of_its_file_and_of_nothing_else(imported: Wsl) -> None:
    path = f"C:\\Users\\{ACCOUNT}\\.wslconfig"
    assert names(imported) == []
    first, second = (imported.run(ACCOUNT, *IN_DISTRO, "/bin/echo", "here") for _ in range(2))
    assert first.stderr.decode() == f"wsl: Unknown key 'ws12.memory' in {path}:5\r\n"
    assert (second.stdout, second.stderr) == (b"here\n", b"")
    assert names(imported) == [NAME]


@pytest.mark.parametrize(
    ("asked", "codec"), [({}, "utf-16-le"), ({"WSL_UTF8": "yes"}, "utf-16-le"), ({"WSL_UTF8": "1"}, "utf-8")]
)
def test_it_speaks_utf16_unless_it_is_told_a_one(imported: Wsl, asked: dict[str, str], codec: str) -> None:
    _, output, _ = as_it_comes(imported, "--list", "--quiet", "--all", **asked)
    assert output == f"{NAME}\r\n".encode(codec)


def test_bytes_of_a_program_pass_as_they_are_and_so_does_its_code(imported: Wsl) -> None:
    every = bytes(range(256))
    assert inside(imported, "/bin/cat", content=every) == every
    code, output, errors = as_it_comes(
        imported, *IN_DISTRO, "/bin/sh", "-c", "printf '\\377\\n'; printf 'e\\n' >&2; exit 7"
    )
    assert (code, output, errors) == (7, b"\xff\n", b"e\n")


def test_an_argument_is_what_it_is_and_no_shell_sees_it(imported: Wsl) -> None:
    arguments = ("", " ", "it's", '"', "$(reboot)", "*", "\\", "-c", "ä\n")
    said = inside(imported, "/usr/bin/printf", "%s\\0", *arguments)
    assert said.decode().split("\0")[:-1] == list(arguments)


def test_a_program_is_roots_at_the_root(imported: Wsl) -> None:
    assert inside(imported, "/bin/sh", "-c", 'id -u; pwd; echo "$HOME"').decode() == "0\n/\n/root\n"


NOT_FOUND = "Service/WSL_E_DISTRO_NOT_FOUND"
REFUSED = {
    "nobody's": (ACCOUNT, ["--terminate", "nobody"], NOT_FOUND),
    "somebody else's": ("alice", [*IN_DISTRO, "/bin/true"], NOT_FOUND),
    "for the system": ("SYSTEM", ["--list", "--quiet", "--all"], "Service/WSL_E_LOCAL_SYSTEM_NOT_SUPPORTED"),
    "a name that is taken": (ACCOUNT, ["--import", NAME, *IMPORTED], "Service/RegisterDistro/ERROR_ALREADY_EXISTS"),
    "no file": (ACCOUNT, ["--import", "x", "C:\\x", "C:\\none", "--version", "2"], "ERROR_FILE_NOT_FOUND"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_it_refuses_has_a_code_on_its_last_line(imported: Wsl, what: str) -> None:
    account, arguments, code = REFUSED[what]
    ended, output, errors = as_it_comes(imported, *arguments, account=account)
    assert (ended, errors) == (FAILED, b"")
    assert output.decode("utf-16-le").endswith(f".\r\nError code: Wsl/{code}\r\n")


def test_a_distro_belongs_to_whoever_imported_it(imported: Wsl) -> None:
    assert names(imported, "--all", "alice") == []
    assert imported.run("alice", "--unregister", NAME).returncode == FAILED
    assert names(imported, "--all") == [NAME]


def test_systemd_runs_from_the_next_start_on_where_wsl_conf_says_so(imported: Wsl) -> None:
    conf = imported.images[STAGED].root / "etc/wsl.conf"
    ask = ("/bin/sh", "-c", "test -d /run/systemd/system && echo yes || echo no")
    seen = []
    for text in (conf.read_text(), "[boot]\nsystemd=false\n", "[boot]\nsystemd=true\n"):
        conf.write_text(text)
        imported.run(ACCOUNT, "--terminate", NAME)
        seen.append(inside(imported, *ask))
    assert seen == [b"yes\n", b"no\n", b"yes\n"]


def test_a_resolver_is_a_link_of_wsl_unless_wsl_conf_forbids_it(imported: Wsl) -> None:
    root = imported.images[STAGED].root
    file, conf = root / "etc/resolv.conf", root / "etc/wsl.conf"
    imported.run(ACCOUNT, "--terminate", NAME)
    inside(imported, "/bin/true")
    assert file.readlink() == Path(OF_WSL)
    before = conf.read_text()
    conf.write_text(f"{before}[network]\ngenerateResolvConf=false\n")
    imported.run(ACCOUNT, "--terminate", NAME)
    inside(imported, "/bin/true")
    assert not os.path.lexists(file)
    conf.write_text(before)


# What NVIDIA's and Docker's packages bring, as far as it comes to who is first.
UNITS = {
    CDI_SERVICE_FILE: CDI_SERVICE,
    CDI_PATH_FILE: CDI_PATH,
    "/etc/systemd/system/nvidia-cdi-refresh.service": """\
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'sleep 0.5; mkdir -p /run/cdi; echo theirs > /run/cdi/nvidia.yaml'
[Install]
WantedBy=multi-user.target
""",
    "/etc/systemd/system/docker.service": """\
[Service]
Type=oneshot
ExecStart=/bin/cp /run/cdi/nvidia.yaml /var/seen-by-docker
[Install]
WantedBy=multi-user.target
""",
}


def test_each_start_writes_the_cdi_spec_of_the_driver_that_is_there_before_docker_reads_it(imported: Wsl) -> None:
    distro = imported.images[STAGED]
    for path, text in {**UNITS, "/usr/bin/nvidia-ctk": CTK}.items():
        (distro.root / path.lstrip("/")).write_text(text)
    (distro.root / "usr/bin/nvidia-ctk").chmod(0o755)
    units = [path.rpartition("/")[2] for path in UNITS]
    inside(imported, "/bin/systemctl", "enable", *units)
    verified = subprocess.run(
        distro.inside("systemd-analyze", "verify", *units), capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (verified.returncode, [line for line in verified.stderr.splitlines() if "winhost" in line]) == (0, [])
    store = distro.root / "usr/lib/wsl/drivers"
    for driver in ("nv_dispi.inf_amd64_1", "nv_dispi.inf_amd64_2"):
        imported.run(ACCOUNT, "--terminate", NAME)
        shutil.rmtree(store, ignore_errors=True)
        (store / driver).mkdir(parents=True)
        (store / driver / "libcuda.so.1.1").touch()
        inside(imported, "/bin/true")
        spec = f"---\n- hostPath: /usr/lib/wsl/drivers/{driver}/libcuda.so.1.1\n"
        assert (
            distro.read("/var/seen-by-docker") == inside(imported, "/bin/cat", "/run/cdi/nvidia.yaml").decode() == spec
        )


def test_what_holds_a_distro_ends_with_it(imported: Wsl) -> None:
    command = [str(imported.program(ACCOUNT)), *IN_DISTRO, "/bin/sh", "-c", "echo; exec sleep infinity"]
    with started(command, stdout=subprocess.PIPE) as holding:
        assert holding.stdout is not None
        assert holding.stdout.readline() == b"\n"
        assert imported.run(ACCOUNT, "--shutdown").returncode == 0
        assert holding.wait(PATIENCE_S) != 0
    assert names(imported) == []
