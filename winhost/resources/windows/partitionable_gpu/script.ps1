# key {gpu: device interface}   state {partitions: int, valid_counts: [int], used: int}
function Get-WinhostPartitionableGpu {
    Assert-WinhostHyperV
    foreach ($gpu in @(Find-WinhostPartitionableGpus)) {
        $name = "$($gpu.Name)"
        $state = @{
            partitions = [int]$gpu.PartitionCount
            valid_counts = Read-WinhostList { foreach ($count in @($gpu.ValidPartitionCounts)) { [int]$count } }
            used = Read-WinhostValue { Measure-WinhostPartitions $name }
        }
        @{ key = @{ gpu = $name }; state = $state }
    }
}

function Find-WinhostPartitionableGpus {
    if (Test-WinhostCommand 'Get-VMHostPartitionableGpu') {
        return Get-VMHostPartitionableGpu -ErrorAction Stop
    }
    # The name before Windows Server 2022 and Windows 11.
    if (Test-WinhostCommand 'Get-VMPartitionableGpu') {
        return Get-VMPartitionableGpu -ErrorAction Stop
    }
    # Without a cmdlet the GPUs are unknown. An empty list would mean that there are none.
    Stop-Winhost 'Winhost.NotExposed' 'NotImplemented' 'This Windows has no cmdlet that lists GPUs that can be partitioned.'
}

function Measure-WinhostPartitions {
    param([string]$Name)
    $used = 0
    foreach ($vm in @(Find-WinhostVms $null)) {
        foreach ($adapter in @(Get-VMGpuPartitionAdapter -VM $vm -ErrorAction Stop)) {
            $gpu = Read-WinhostField $adapter 'InstancePath'
            if (-not $gpu) {
                # Windows 10 does not report to which GPU a partition belongs.
                Assert-WinhostValue $null
            }
            if ($gpu -eq $Name) {
                $used += 1
            }
        }
    }
    $used
}
