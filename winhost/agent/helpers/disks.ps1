# Disks and partitions by their GUIDs, which no restart and no other system renumbers.
function Read-WinhostDisks {
    @(Read-WinhostOnce 'disks' { Get-Disk -ErrorAction Stop })
}

function Find-WinhostPartitions {
    # Those of GPT disks: only they have a GUID. Each with the disk that it is on.
    $disks = @{}
    foreach ($disk in @(Read-WinhostDisks)) {
        $disks["$($disk.Number)"] = $disk
    }
    foreach ($partition in @(Read-WinhostOnce 'partitions' { Get-Partition -ErrorAction Stop })) {
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
