# key {partition: guid}   state {free: bytes, file_system: text}
function Get-WinhostEfiVolume {
    Assert-WinhostAdministrator
    foreach ($each in @(Find-WinhostEfiPartitions)) {
        $state = @{
            free = Read-WinhostValue { [long](Read-WinhostEfiVolume $each 'SizeRemaining') }
            file_system = Read-WinhostValue { "$(Read-WinhostEfiVolume $each 'FileSystem')" }
        }
        @{ key = @{ partition = $each.guid }; state = $state }
    }
}

function Read-WinhostEfiVolume {
    param($Partition, [string]$Name)
    # One that was never formatted may have no volume.
    $volume = Read-WinhostOnce "volume $($Partition.guid)" { Get-Volume -Partition $Partition.found -ErrorAction Stop }
    Assert-WinhostKnown (Read-WinhostField $volume $Name)
}
