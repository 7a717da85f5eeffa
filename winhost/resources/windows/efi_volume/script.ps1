# key {partition: guid}   state {free: bytes, file_system: text}
function Get-WinhostEfiVolume {
    Assert-WinhostAdministrator
    foreach ($each in @(Find-WinhostPartitions)) {
        if ($each.type -ceq 'c12a7328-f81f-11d2-ba4b-00a0c93ec93b') {
            $volume = @(Get-Volume -Partition $each.found -ErrorAction Stop)[0]
            $state = @{ free = [long]$volume.SizeRemaining; file_system = "$($volume.FileSystem)" }
            @{ key = @{ partition = $each.guid }; state = $state }
        }
    }
}
