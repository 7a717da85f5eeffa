# Disks and partitions by their GUIDs, which do not change with a restart or in another system.
function Read-WinhostDisks {
    @(Read-WinhostCached 'disks' { Get-Disk -ErrorAction Stop })
}

function Find-WinhostPartitions {
    # Returns the partitions of GPT disks, which have a GUID, each with its disk.
    $disks = @{}
    foreach ($disk in @(Read-WinhostDisks)) {
        $disks["$($disk.Number)"] = $disk
    }
    foreach ($partition in @(Read-WinhostCached 'partitions' { Get-Partition -ErrorAction Stop })) {
        $guid = ConvertTo-WinhostGuid $partition.Guid
        $disk = $disks["$($partition.DiskNumber)"]
        if ($null -ne $guid -and $null -ne $disk) {
            @{ guid = $guid; disk = $disk; found = $partition; type = ConvertTo-WinhostGuid $partition.GptType }
        }
    }
}

function Read-WinhostDriveLetter {
    param($Partition)
    $letter = "$($Partition.DriveLetter)".Trim([char[]]@([char]0, [char]32))
    if ($letter -eq '') {
        return $null
    }
    $letter
}

function Read-WinhostPartitionRoot {
    param($Partition)
    "$(@(Get-Volume -Partition $Partition -ErrorAction Stop)[0].Path)"
}

function Protect-WinhostPartition {
    param($Partition)
    # Sets the read-only attribute in the partition table. Windows reads it when it mounts the volume, so the volume is
    # dismounted first; that also closes files that are open for writing.
    $root = Read-WinhostPartitionRoot $Partition
    Reset-WinhostVolume $root
    Set-Partition -InputObject $Partition -IsReadOnly $true -ErrorAction Stop
    $script:WinhostCache = @{}
    Reset-WinhostVolume $root
    if (-not (Test-WinhostReadOnlyVolume $root)) {
        Stop-Winhost 'Winhost.StillWritable' 'InvalidResult' 'Windows made the partition read-only, and its volume can still be written to.'
    }
}

function Unprotect-WinhostPartition {
    param($Partition)
    if ($Partition.IsReadOnly) {
        Set-Partition -InputObject $Partition -IsReadOnly $false -ErrorAction Stop
        $script:WinhostCache = @{}
        Reset-WinhostVolume (Read-WinhostPartitionRoot $Partition)
    }
}
