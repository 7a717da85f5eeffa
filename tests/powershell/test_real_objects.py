"""The scripts with objects and values that real hosts and callers have, and the lab does not."""

from collections.abc import Iterator

import pytest

from tests.powershell.twins import Scripts, scripts
from winhost.lab.wire.served_host import PipelineError
from winhost.resources.windows.windows_scripts import agent_text


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripts]:
    with scripts() as running:
        running.run(agent_text())  # over the stand-ins for its helpers
        yield running


def test_a_way_in_without_a_host_key_is_read(engine: Scripts) -> None:
    """sshd's settings are written before its package is there: where that cannot be had, there is no key yet."""
    script = """& {
        function Read-WinhostDistroState { 'listen 192.0.2.7', 'port 2222', 'end .' }
        $found = Read-WinhostAccess @{ running = $true; key = $null; record = $null }
        "$($found.listen) $($found.port) $($null -eq $found.host_key) $($found.active)"
    }"""
    assert engine.run(script) == ["192.0.2.7 2222 True False"]


def test_the_address_of_the_hosts_own_port_is_taken(engine: Scripts) -> None:
    """Such a port belongs to no VM: its VMId is empty, as is the id of a VM that is not made yet."""
    script = """& {
        function Find-WinhostVms { }
        function Get-VMNetworkAdapter { [PSCustomObject]@{ VMId = $null; MacAddress = '00155D000001' } }
        Assert-WinhostUniqueVm 'llm' $null '00155D000001'
    }"""
    with pytest.raises(PipelineError) as caught:
        engine.run(script)
    assert caught.value.error_id == "Winhost.AddressTaken"


def test_whose_gpu_a_partition_is_may_be_unknown(engine: Scripts) -> None:
    """On Windows 10 the objects of Get-VMGpuPartitionAdapter have no InstancePath."""
    script = """& {
        function Find-WinhostVms { 'vm' }
        function Get-VMGpuPartitionAdapter { [PSCustomObject]@{ VMId = [guid]::Empty } }
        Measure-WinhostPartitions 'gpu'
    }"""
    with pytest.raises(PipelineError) as caught:
        engine.run(script)
    assert caught.value.error_id == "Winhost.NotExposed"


def test_a_word_is_no_flag_of_mmio(engine: Scripts) -> None:
    """The lab leaves the values of VmMmio to Hyper-V, which PowerShell would give true for every word."""
    with pytest.raises(PipelineError) as caught:
        engine.run("Set-WinhostVmMmio $null ([PSCustomObject]@{ cache = 'false' }) $null")
    assert caught.value.error_id == "Winhost.BadRequest"
