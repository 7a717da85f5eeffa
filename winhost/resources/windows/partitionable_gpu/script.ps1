# key {gpu: device interface}   state {partitions: int, valid_counts: [int], used: int}
function Get-WinhostPartitionableGpu {
    Assert-WinhostHyperV
    # Before Windows Server 2022 there is no such cmdlet, and no server GPU can be split.
    if (-not (Test-WinhostCommand 'Get-VMHostPartitionableGpu')) {
        return
    }
    foreach ($gpu in @(Get-VMHostPartitionableGpu -ErrorAction Stop)) {
        $name = "$($gpu.Name)"
        $state = @{
            partitions = [int]$gpu.PartitionCount
            valid_counts = Read-WinhostList { foreach ($count in @($gpu.ValidPartitionCounts)) { [int]$count } }
            used = Read-WinhostValue { Measure-WinhostPartitions $name }
        }
        @{ key = @{ gpu = $name }; state = $state }
    }
}

function Measure-WinhostPartitions {
    param([string]$Name)
    $used = 0
    foreach ($vm in @(Find-WinhostVms $null)) {
        foreach ($adapter in @(Get-VMGpuPartitionAdapter -VM $vm -ErrorAction Stop)) {
            if ("$($adapter.InstancePath)" -eq $Name) {
                $used += 1
            }
        }
    }
    $used
}
