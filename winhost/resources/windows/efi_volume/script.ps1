# key {partition: guid}   state {free: bytes, file_system: text, files: [{path: text, size: bytes or null, sha256: text or null}]}
function Get-WinhostEfiVolume {
    Assert-WinhostAdministrator
    foreach ($each in @(Find-WinhostPartitions)) {
        if ($each.type -ceq 'c12a7328-f81f-11d2-ba4b-00a0c93ec93b') {
            @{ key = @{ partition = $each.guid }; state = Read-WinhostEfiVolume $each.found }
        }
    }
}

function Read-WinhostEfiVolume {
    param($Partition)
    $volume = @(Get-Volume -Partition $Partition -ErrorAction Stop)[0]
    $state = @{
        free = [long]$volume.SizeRemaining
        file_system = "$($volume.FileSystem)"
        # Its name as a volume: a drive letter would be a change, and everybody could see it.
        files = Read-WinhostList { Read-WinhostVolumeFiles "$($volume.Path)" }
    }
    $state
}
