# key {partition: guid}   state {free: bytes, file_system: text}
function Get-WinhostEfiVolume {
    Assert-WinhostAdministrator
    foreach ($each in @(Find-WinhostEfiPartitions)) {
        $state = @{
            free = Read-WinhostValue { [long](Assert-WinhostValue (Read-WinhostEfiVolume $each).SizeRemaining) }
            file_system = Read-WinhostValue { "$((Read-WinhostEfiVolume $each).FileSystem)" }
        }
        @{ key = @{ partition = $each.guid }; state = $state }
    }
}

function Read-WinhostEfiVolume {
    param($Partition)
    # A partition that was never formatted may have no volume: then the cmdlet fails.
    @(Get-Volume -Partition $Partition.found -ErrorAction Stop)[0]
}
