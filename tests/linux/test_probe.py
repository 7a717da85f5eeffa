"""The program of `winhost probe` with a stand-in for the driver: a part that hangs, crashes or is refused ends no
other.
"""

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.processes import PATIENCE_S
from winhost.connect.checked_answers import check_answer, parse_answers
from winhost.connect.ssh import START
from winhost.engine.probe import DISTURBING, PARTS
from winhost.model.measured import ProbeAnswer
from winhost.resources.linux.linux_scripts import probe_text

pytestmark = pytest.mark.real

SOURCE = Path(__file__).with_name("driver_standin.c")
CC = shutil.which("cc")
STANDIN = pytest.mark.skipif(CC is None, reason="there is no C compiler for the stand-in of the driver")
NAMES = ("libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so.2", "libnvcuvid.so.1", "libnvidia-encode.so.1")

Probe = Callable[..., ProbeAnswer]
T = TypeVar("T")


def built(folder: Path, *flags: str) -> Path:
    folder.mkdir()
    for name in NAMES:
        subprocess.run(  # each with its own name: one copy of a library does not stand for another
            [str(CC), "-O2", "-shared", "-fPIC", *flags, f"-Wl,-soname,{name}", "-o", str(folder / name), str(SOURCE)],
            check=True,
            timeout=PATIENCE_S,
        )
    return folder


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("standin") / "whole")


def tried(
    request: Mapping[str, Any],
    libraries: Path | None,
    programs: Path | None = None,
    tmpdir: str = "/tmp",
    available: str = "16384",
    **does: str,
) -> ProbeAnswer:
    """`available`: the MiB of memory that the host seems to have; how much is free here depends on what else runs."""
    command = START.replace("exec python3", f"exec {sys.executable}")
    environment = {
        "PATH": os.environ["PATH"],
        "TMPDIR": tmpdir,
        **{f"STANDIN_{name.upper()}": value for name, value in does.items()},
    }
    text = probe_text() if programs is None else probe_text().replace('"/usr/local/bin"', f'"{programs}"')
    if libraries is not None:
        environment["LD_LIBRARY_PATH"] = str(libraries)
        memory = libraries / f"{available}.meminfo"
        memory.write_text(f"MemAvailable: {int(available) << 10} kB\n", encoding="ascii")
        assert "/proc/meminfo" in text
        text = text.replace("/proc/meminfo", str(memory))
    given = json.dumps(text) + "\n" + json.dumps(request) + "\n"
    ran = subprocess.run(
        ["sh", "-c", command], input=given.encode(), env=environment, capture_output=True, timeout=PATIENCE_S
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    (line,) = filter(None, ran.stdout.decode("ascii").splitlines())
    answer = check_answer(parse_answers(line, 1)[0], ProbeAnswer)
    assert isinstance(answer, ProbeAnswer)
    return answer


@pytest.fixture
def probe(driver: Path) -> Probe:
    def ask(*parts: str, deadlines: Mapping[str, float] | None = None, **does: str) -> ProbeAnswer:
        return tried({"parts": parts, "deadlines": deadlines or {}}, driver, **does)

    return ask


def some(value: T | None) -> T:
    assert value is not None
    return value


def outcomes(answer: ProbeAnswer) -> dict[str, str]:
    return {each.part: each.outcome for each in answer.outcomes}


def test_it_is_old_enough_a_python_and_needs_nothing_beside_it() -> None:
    tree = ast.parse(probe_text(), feature_version=(3, 8))  # of Ubuntu 20.04
    names = {each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names <= sys.stdlib_module_names
    assert probe_text().isascii()


@STANDIN
def test_where_all_works_every_part_is_done(probe: Probe) -> None:
    parts = (*PARTS, *(part for part in DISTURBING if part != "container"))
    found = probe(*parts)
    assert outcomes(found) == dict.fromkeys(parts, "done"), found.outcomes
    assert (found.driver, found.cuda, [gpu.nvlinks for gpu in found.gpus]) == ("591.59", "13.0", [4, 4])
    assert all(rate for each in found.copies for rate in (each.pinned_up, each.pageable_down))
    assert [(link.source, link.target, link.intact) for link in found.peers] == [(0, 1, True), (1, 0, True)]
    assert (found.ipc_legacy, found.ipc_fd) == (True, True)
    assert (some(found.managed).works, some(found.managed).concurrent) == (True, True)
    assert (some(found.pinned).bytes, some(found.pinned).ended) == (4 << 30, None)
    assert some(found.checkpoint).intact is True
    assert (some(found.video).decodes, some(found.video).engines) == (True, 7)
    assert (some(found.nccl).transports, some(found.nccl).intact) == (("SHM/direct/direct",), True)


@STANDIN
@pytest.mark.parametrize("part", [*PARTS[2:], "checkpoint"])
def test_a_part_that_hangs_is_stopped_and_the_others_go_on(probe: Probe, part: str) -> None:
    call = {
        "copies": "cuMemHostAlloc",
        "peers": "cuMemcpyPeer",
        "ipc-legacy": "cuIpcOpenMemHandle_v2",
        "ipc-fd": "cuMemImportFromShareableHandle",
        "managed": "cuMemAllocManaged",
        "video": "cuvidDecodePicture",
        "checkpoint": "cuCheckpointProcessCheckpoint",
    }[part]
    found = probe("driver", part, "shm", hang=call, deadlines={part: 2})
    assert outcomes(found) == {"driver": "done", part: "hung", "shm": "done"}
    assert some(found.outcome_of(part)).why == "it was stopped after 2 s"


@STANDIN
def test_a_part_that_crashes_keeps_what_it_had_said(probe: Probe) -> None:
    found = probe("managed", "copies", "driver", crash="cuStreamCreate")
    assert outcomes(found) == {"managed": "crashed", "copies": "done", "driver": "done"}
    assert some(found.outcome_of("managed")).why == f"signal {int(signal.SIGSEGV)}"
    assert (some(found.managed).works, some(found.managed).concurrent) == (True, None)


@STANDIN
def test_the_other_process_of_a_part_may_crash(probe: Probe) -> None:
    found = probe("ipc-legacy", "driver", crash="cuIpcOpenMemHandle_v2")
    assert outcomes(found) == {"ipc-legacy": "failed", "driver": "done"}
    assert some(found.outcome_of("ipc-legacy")).why == "the other process ended"


@STANDIN
@pytest.mark.parametrize(
    ("part", "call"),
    [("ipc-fd", "cuMemCreate"), ("ipc-legacy", "cuIpcOpenMemHandle_v2"), ("checkpoint", "cuCheckpointProcessLock")],
)
def test_an_error_has_the_name_and_the_number_that_cuda_has(probe: Probe, part: str, call: str) -> None:
    ended = some(probe(part, fail=f"{call}=801").outcome_of(part))
    assert (ended.outcome, ended.why) == ("failed", f"{call}: CUDA_ERROR_NOT_SUPPORTED (801)")
    assert (some(ended.error).call, some(ended.error).number) == (call, 801)


@STANDIN
def test_no_gpu_is_what_cuda_says_of_it(probe: Probe) -> None:
    ended = some(probe("driver", gpus="0").outcome_of("driver"))
    assert ended.why == "cuInit: CUDA_ERROR_NO_DEVICE (100)"


@STANDIN
def test_with_one_gpu_there_are_no_peers_to_try(probe: Probe) -> None:
    found = probe("driver", "peers", "nccl", gpus="1")
    assert outcomes(found) == {"driver": "done", "peers": "skipped", "nccl": "skipped"}


@STANDIN
def test_peers_without_access_and_peers_that_copy_wrong(probe: Probe) -> None:
    assert [(link.access, link.intact) for link in probe("peers", peers="0").peers] == [(False, None)] * 2
    assert [(link.access, link.intact) for link in probe("peers", spoil="1").peers] == [(True, False)] * 2


@STANDIN
def test_nothing_is_tried_where_a_running_engine_may_need_the_memory(probe: Probe) -> None:
    parts = ("copies", "peers", "ipc-legacy", "ipc-fd", "managed", *DISTURBING[:3])
    found = probe("driver", *parts, free="1500")
    assert outcomes(found) == {"driver": "done", **dict.fromkeys(parts, "skipped")}
    assert some(found.outcome_of("copies")).why == "GPU 0 has 1500 MiB free, and 2048 MiB are needed"


@STANDIN
def test_nothing_is_tried_where_the_host_may_need_the_memory(probe: Probe) -> None:
    found = probe("driver", "copies", "pin-limit", available="2100")
    assert outcomes(found) == {"driver": "done", "copies": "skipped", "pin-limit": "done"}
    assert some(found.outcome_of("copies")).why == "this machine has 2100 MiB free, and 2560 MiB are needed"
    assert (some(found.pinned).bytes, some(found.pinned).ended) == (0, "memory")


@STANDIN
def test_the_limit_of_pinned_memory_is_where_it_is_refused(probe: Probe) -> None:
    found = probe("pin-limit", pin="900")
    assert (some(found.pinned).bytes >> 20, some(found.pinned).ended) == (896, "CUDA_ERROR_OUT_OF_MEMORY")


@STANDIN
def test_where_the_driver_offers_no_use_at_once_it_is_not_tried(probe: Probe) -> None:
    found = probe("managed", managed="0")
    assert (some(found.managed).works, some(found.managed).concurrent, some(found.managed).offered) == (
        True,
        None,
        False,
    )


def put_ffmpeg(
    folder: Path, encoders: str = "h264_nvenc", fails: str = "", spoils: bool = False, starts: bool = True
) -> None:
    """A stand-in: it encodes into a file, and sums what it has decoded."""
    program = folder / "ffmpeg"
    spoiled = "h264_cuvid" if spoils else "nothing"
    ends = "" if starts else "echo no libpulse >&2; exit 127"
    program.write_text(f"""#!/bin/sh
{ends}
echo "$@" >>{folder}/asked
case "$*" in
*-encoders*) echo ' V....D {encoders} of a stand-in' ;;
*-version*) echo 'ffmpeg version 5.1' ;;
*lavfi*) [ -z '{fails}' ] || {{ echo '{fails}' >&2; exit 1; }}; for last; do :; done; echo made >"$last" ;;
*{spoiled}*) for n in $(seq 25); do echo "0, $n, 1, 98304, bad$n"; done ;;
*framemd5*) echo '#software'; for n in $(seq 25); do echo "0, $n, 1, 98304, sum$n"; done ;;
esac
""")
    program.chmod(0o755)


@STANDIN
def test_what_was_encoded_is_decoded_by_gpu_and_processor(tmp_path: Path, driver: Path) -> None:
    put_ffmpeg(tmp_path)
    found = some(tried({"parts": ["video"]}, driver, tmp_path).video)
    assert (found.decodes, found.encodes, found.ffmpeg, found.why) == (True, True, "ffmpeg version 5.1", None)
    encoded, by_gpu, by_processor = (tmp_path / "asked").read_text().splitlines()[2:]
    assert "-c:v h264_nvenc" in encoded
    assert "-c:v h264_cuvid" in by_gpu
    assert "cuvid" not in by_processor


NO_ENCODER = "OpenEncodeSessionEx failed: unsupported device (2)"


@STANDIN
@pytest.mark.parametrize(
    ("does", "encodes", "why"),
    [
        ({"fails": NO_ENCODER}, False, f"ffmpeg: {NO_ENCODER}"),
        ({"encoders": "libx264"}, None, "encoding was not tried: this ffmpeg has no h264_nvenc"),
        ({"spoils": True}, False, None),
        ({"starts": False}, None, "encoding was not tried: ffmpeg: no libpulse"),
    ],
)
def test_what_is_not_encoded_is_said(
    tmp_path: Path, driver: Path, does: dict[str, Any], encodes: bool | None, why: str | None
) -> None:
    put_ffmpeg(tmp_path, **does)
    found = some(tried({"parts": ["video"]}, driver, tmp_path).video)
    assert (found.decodes, found.encodes, found.why) == (True, encodes, why)


@STANDIN
def test_what_is_decoded_otherwise_is_seen(probe: Probe, tmp_path: Path, driver: Path) -> None:
    assert some(probe("video", spoil="1").video).decodes is False
    refused = probe("video", decodes="0")
    assert (some(refused.video).decodes, some(refused.outcome_of("video")).why) == (False, "the GPU decodes no H.264")
    failed = some(probe("video", fail="cuvidCreateDecoder=801").outcome_of("video"))
    assert failed.why == "cuvidCreateDecoder: CUDA_ERROR_NOT_SUPPORTED (801)"
    without = tmp_path / "without"
    shutil.copytree(driver, without)
    (without / "libnvcuvid.so.1").unlink()
    ended = some(tried({"parts": ["video"]}, without).outcome_of("video"))
    assert ended.outcome == "skipped"
    assert "libnvcuvid.so.1" in str(ended.why)


@STANDIN
def test_a_driver_without_a_call_says_which(tmp_path: Path) -> None:
    found = tried({"parts": ["checkpoint", "driver"]}, built(tmp_path / "least", "-DLEAST"))
    ended = some(found.outcome_of("checkpoint"))
    assert ended.why == "cuCheckpointProcessLock: not in this driver (-1)"
    assert outcomes(found)["driver"] == "done"


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has a driver")
def test_without_a_driver_every_part_says_so_and_shm_is_done() -> None:
    found = tried({"parts": [*PARTS, *DISTURBING]}, None)
    assert {part for part, outcome in outcomes(found).items() if outcome == "done"} == {"shm"}
    assert "libcuda.so.1" in str(some(found.outcome_of("driver")).why)
    assert outcomes(found)["container"] == "skipped"


def put_engine(folder: Path, name: str, has_image: bool) -> None:
    """A stand-in, which runs here what it is told to run there."""
    engine = folder / name
    engine.write_text(
        f'#!/bin/sh\n[ "$1" != image ] || exit {0 if has_image else 1}\necho "$@" >{folder}/asked-of-{name}\n'
        f'while [ "$1" != -I ]; do shift; done\nexec {sys.executable} "$@"\n'
    )
    engine.chmod(0o755)


@STANDIN
@pytest.mark.parametrize(
    ("docker_has_it", "runtime", "gpus"),
    [(True, "docker", "--gpus=all"), (False, "podman", "--device=nvidia.com/gpu=all")],
)
def test_a_container_runs_the_same_program_where_its_image_is(
    tmp_path: Path, driver: Path, docker_has_it: bool, runtime: str, gpus: str
) -> None:
    put_engine(tmp_path, "docker", docker_has_it)
    put_engine(tmp_path, "podman", not docker_has_it)
    request = {"parts": ["container"], "container": {"image": "vllm:1", "program": probe_text()}}
    found = tried(request, driver, tmp_path)
    inside = some(found.container)
    assert (inside.image, inside.runtime) == ("vllm:1", runtime)
    assert outcomes(some(inside.answer)) == {"driver": "done", "nccl": "done", "video": "done"}
    asked = (tmp_path / f"asked-of-{runtime}").read_text()
    for word in ("--pull=never", "--network=none", "compute,utility,video", gpus, "-- vllm:1 -I"):
        assert word in asked


@STANDIN
def test_nothing_stays_behind_of_a_part_that_was_killed(tmp_path: Path, driver: Path) -> None:
    request = {"parts": ["nccl", "checkpoint"], "deadlines": {"nccl": 2, "checkpoint": 2}}
    found = tried(request, driver, tmpdir=str(tmp_path), hang="ncclAllReduce")
    assert outcomes(found) == {"nccl": "hung", "checkpoint": "done"}
    assert [*tmp_path.iterdir()] == []
