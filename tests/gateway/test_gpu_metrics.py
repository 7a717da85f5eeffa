"""Metrics of GPUs, from a stand-in for the driver's library through a keeper to Prometheus."""

import asyncio
import ctypes
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.running import Gateway, gateway, settings_for
from tests.gateway.test_gateway import wait_until
from tests.processes import PATIENCE_S
from winhost.gateway import gpu_calls
from winhost.gateway.api_keys import new_key
from winhost.gateway.gateway_settings import parse_settings
from winhost.gateway.gpu_calls import GpuLibrary
from winhost.gateway.gpu_metrics import GpuMetrics, gpu_lines
from winhost.gateway.keeper import KeeperError, KeeperService
from winhost.gateway.keeper_client import KeeperFault

NOT_SUPPORTED, LOST, TIMEOUT = 3, 15, 10


class Driver:
    """A stand-in for libnvidia-ml with two GPUs, of which the second is lost if `lost`. answers: results of functions
    with one number, None: not supported, as many in WSL; xids: not read yet, by GPU.
    """

    def __init__(self) -> None:
        self.answers: dict[str, int | None] = {
            "nvmlDeviceGetTemperature": 61,
            "nvmlDeviceGetPowerUsage": 312_500,
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetTotalEnergyConsumption": 8_000_500,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x1 | 0x4,
            "nvmlDeviceGetTotalEccErrors": 2,
        }
        self.lost = False
        self.xids: list[tuple[int, int]] = []
        self.registered: list[int] = []

    def __getattr__(self, name: str) -> Any:
        if name not in self.answers:
            raise AttributeError(name)

        def answer(gpu: ctypes.c_void_p, *more: Any) -> int:
            value = self.answers[name]
            if value is None:
                return NOT_SUPPORTED
            more[-1]._obj.value = value
            return 0

        return answer

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, gpu: Any) -> int:  # noqa: N802
        if index.value == 1 and self.lost:
            return LOST
        gpu._obj.value = 0x1000 + index.value
        return 0

    def nvmlDeviceGetUUID(self, gpu: ctypes.c_void_p, text: Any, size: Any) -> int:  # noqa: N802
        text.value = b"GPU-0000000%d" % ((gpu.value or 0) - 0x1000)
        return 0

    def nvmlDeviceGetName(self, gpu: ctypes.c_void_p, text: Any, size: Any) -> int:  # noqa: N802
        text.value = b'NVIDIA "H100"'
        return 0

    def nvmlDeviceGetMemoryInfo(self, gpu: ctypes.c_void_p, memory: Any) -> int:  # noqa: N802
        memory._obj.total, memory._obj.used = 80 << 30, 20 << 30
        return 0

    def nvmlDeviceGetUtilizationRates(self, gpu: ctypes.c_void_p, busy: Any) -> int:  # noqa: N802
        busy._obj.gpu = 97
        return 0

    def nvmlEventSetCreate(self, made: Any) -> int:  # noqa: N802
        made._obj.value = 0x2000
        return 0

    def nvmlDeviceRegisterEvents(self, gpu: ctypes.c_void_p, kinds: Any, events: Any) -> int:  # noqa: N802
        assert kinds.value == 8
        self.registered.append(gpu.value or 0)
        return 0

    def nvmlEventSetWait_v2(self, events: Any, event: Any, within: Any) -> int:  # noqa: N802
        assert within.value == 0
        if not self.xids:
            return TIMEOUT
        gpu, xid = self.xids.pop(0)
        event._obj.gpu, event._obj.kind, event._obj.data = 0x1000 + gpu, 8, xid
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    found = Driver()
    monkeypatch.setattr(gpu_calls, "_load_library", lambda names: found)
    return found


def told(library: GpuLibrary) -> list[str]:
    return [each for each in gpu_lines(json.loads(json.dumps(library.state()))) if not each.startswith("#")]


def test_what_the_driver_says_is_told_by_the_names_of_the_convention(driver: Driver) -> None:
    labels = 'hw_id="GPU-00000000",hw_name="GPU 0",hw_model="NVIDIA _H100_"'
    lines = [each for each in told(GpuLibrary()) if 'hw_name="GPU 0"' in each]
    assert [each for each in lines if "throttled" not in each] == [
        f"hw_gpu_memory_limit_bytes{{{labels}}} {80 << 30}",
        f"hw_gpu_memory_usage_bytes{{{labels}}} {20 << 30}",
        f"hw_gpu_utilization_ratio{{{labels}}} 0.97",
        f"hw_temperature_celsius{{{labels}}} 61",
        f'hw_power_watts{{{labels},hw_type="gpu"}} 312.5',
        f"winhost_gpu_power_limit_watts{{{labels}}} 700.0",
        f'hw_energy_joules_total{{{labels},hw_type="gpu"}} 8000.5',
        f'hw_errors_total{{{labels},hw_type="gpu",error_type="corrected"}} 2',
        f'hw_errors_total{{{labels},hw_type="gpu",error_type="uncorrected"}} 2',
        f'hw_status{{{labels},hw_type="gpu",hw_state="ok"}} 1',
        f'hw_status{{{labels},hw_type="gpu",hw_state="failed"}} 0',
    ]
    held = [each for each in lines if "throttled" in each and each.endswith(" 1")]
    assert held == [f'winhost_gpu_throttled{{{labels},reason="software_power_cap"}} 1']


def test_what_the_driver_does_not_offer_is_left_out(driver: Driver) -> None:
    driver.answers = {"nvmlDeviceGetTemperature": None, "nvmlDeviceGetPowerUsage": 5_000}
    lines = told(GpuLibrary())
    assert any(each.startswith("hw_power_watts") for each in lines)
    assert not any(each.startswith(("hw_temperature", "hw_energy", "hw_errors", "winhost_gpu")) for each in lines)


def test_xids_are_counted_and_none_is_counted_twice(driver: Driver) -> None:
    library = GpuLibrary()
    library.state()
    driver.xids = [(1, 79), (0, 13), (0, 13)]
    library.state()
    lines = [each for each in told(library) if "xid_" in each]
    assert [each.partition("error_type=")[2] for each in lines] == ['"xid_13"} 2', '"xid_79"} 1']
    assert driver.registered == [0x1000, 0x1001]


def test_a_gpu_that_is_lost_hides_no_other(driver: Driver) -> None:
    library = GpuLibrary()
    driver.lost = True
    failed = [each for each in told(library) if 'hw_state="failed"' in each]
    assert [each[-1] for each in failed] == ["0", "1"]
    assert 'hw_id="1",hw_name="GPU 1"' in failed[1]


SETTINGS = {"listen": {"socket": "/run/door.sock"}, "models": [{"name": "a", "engine": {"socket": "/run/a.sock"}}]}


def test_a_driver_that_hangs_is_asked_once(driver: Driver) -> None:
    service = KeeperService(parse_settings(json.dumps(SETTINGS)))

    async def story() -> None:
        loop = asyncio.get_running_loop()
        hangs = loop.create_future()
        service._run_in_thread = lambda work: hangs  # type: ignore[method-assign,assignment,return-value]
        first = asyncio.ensure_future(service.answer({"do": "gpus"}))
        await asyncio.sleep(0)
        with pytest.raises(KeeperError, match="has not answered"):
            await service.answer({"do": "gpus"})
        hangs.set_result([])
        assert await first == {"gpus": []}

    asyncio.run(story())


def test_a_keeper_that_cannot_ask_is_told_as_such() -> None:
    async def fails() -> list[dict[str, Any]]:
        raise KeeperFault("no driver")

    assert asyncio.run(GpuMetrics(fails).lines())[-1] == "winhost_gateway_gpus_read 0"
    assert asyncio.run(GpuMetrics(None).lines()) == []


KEEPER = """
import sys
sys.path.insert(0, {root!r})
import tests.gateway.test_gpu_metrics as it
from winhost.gateway import gpu_calls, keeper
gpu_calls._load_library = lambda names: it.Driver()
sys.exit(keeper.main([{settings!r}]))
"""


@pytest.fixture
def gateway_with_keeper(python: str, short: Path) -> Iterator[tuple[Gateway, str]]:
    """A gateway with a keeper whose driver is the stand-in, and a key for the metrics of one model."""
    settings = settings_for(short, turns={"keeper": str(short / "keeper.sock")})
    tenant, line = new_key("tenant", "metrics=org/tiny")
    root = str(Path(__file__).parents[2])
    with gateway(short, settings, python, more_keys=line) as door:
        program = KEEPER.format(root=root, settings=str(short / "settings.json"))
        process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
        try:
            yield door, tenant
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


@pytest.mark.costly
def test_gpus_are_told_to_who_sees_all_and_to_no_tenant(gateway_with_keeper: tuple[Gateway, str]) -> None:
    door, tenant = gateway_with_keeper
    assert wait_until(lambda: "\nwinhost_gateway_gpus_read 1\n" in door.metrics())
    assert 'hw_gpu_utilization_ratio{hw_id="GPU-00000001"' in door.metrics()
    own = [each for each in door.metrics(tenant).splitlines() if not each.startswith("#")]
    assert not any("hw_" in each for each in own)
