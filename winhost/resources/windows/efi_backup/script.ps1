# key {partition: guid}   state {kept: bool, changed: [text], added: [text]}; set: kept; how {accept: data}
function Get-WinhostEfiBackup {
    Assert-WinhostAdministrator
    foreach ($each in @(Find-WinhostEfiPartitions)) {
        $state = @{ kept = $false; changed = @(); added = @() }
        if (Test-WinhostFolder (Read-WinhostEfiFolder $each.guid)) {
            Assert-WinhostPart 'Read-WinhostEfiState'
            Read-WinhostEfiState $each $state
        }
        @{ key = @{ partition = $each.guid }; state = $state }
    }
}

function Read-WinhostEfiState {
    param($Partition, $State)
    $list = Read-WinhostEfiList $Partition.guid
    if ($null -ne $list) {
        $copy = @($list.files)
        $now = @(Read-WinhostVolumeFiles (Read-WinhostPartitionRoot $Partition.found))
        $State.kept = $true
        $State.changed = @(foreach ($file in @(Select-WinhostChangedFiles $copy $now)) { $file.path })
        $State.added = @(foreach ($file in @(Select-WinhostAddedFiles $copy $now)) { $file.path })
    }
}

function Find-WinhostEfiPartitions {
    foreach ($each in @(Find-WinhostPartitions)) {
        if ($each.type -ceq 'c12a7328-f81f-11d2-ba4b-00a0c93ec93b') {
            $each
        }
    }
}

function Read-WinhostEfiFolder {
    param([string]$Guid)
    "$(Read-WinhostDataFolder)\esp-$Guid"
}

function Read-WinhostEfiList {
    param([string]$Guid)
    # Returns the list of the copied files. It is written last: without it the copy is incomplete.
    Read-WinhostJson "$(Read-WinhostEfiFolder $Guid)\files.json"
}

function Find-WinhostPartitionBootEntries {
    param([string]$Guid)
    # Returns the boot entries that start a Linux from this partition.
    if ((Read-WinhostFirmwareKind) -cne 'uefi') {
        return
    }
    foreach ($entry in @(Read-WinhostBootEntries)) {
        if ("$($entry.partition)" -eq $Guid -and "$($entry.path)" -match '\\EFI\\(ubuntu|debian)\\') {
            $entry
        }
    }
}

function Remove-WinhostNewBootEntries {
    param([string]$Guid)
    # Without the list, new entries cannot be recognized.
    $list = Read-WinhostEfiList $Guid
    if ($null -eq $list -or -not (Test-WinhostDesired $list 'entries')) {
        return
    }
    $known = @($list.entries)
    foreach ($entry in @(Find-WinhostPartitionBootEntries $Guid)) {
        if ($known -notcontains $entry.path) {
            Remove-WinhostBootEntry $entry
        }
    }
}

function Select-WinhostChangedFiles {
    param($Copy, $Now)
    # A file that is open has no hash: whether it changed is unknown, and it could not be written. It counts as unchanged.
    foreach ($file in @($Copy)) {
        $same = @(foreach ($other in $Now) {
            if ((Test-WinhostText $other.path $file.path 'OrdinalIgnoreCase') -and ($null -eq $other.sha256 -or $other.sha256 -ceq $file.sha256)) {
                $other
            }
        })
        if ($same.Count -eq 0) {
            $file
        }
    }
}

function Select-WinhostAddedFiles {
    param($Copy, $Now)
    # Returns only files in places where Linux installers create them. New files elsewhere belong to others.
    foreach ($file in $Now) {
        $ofLinux = $file.path -match '\AEFI\\(ubuntu|debian)\\' -or $file.path -match '\AEFI\\BOOT\\(fb|mm|grub|shim)x64\.efi\z'
        $known = @(foreach ($other in @($Copy)) {
            if (Test-WinhostText $other.path $file.path 'OrdinalIgnoreCase') {
                $other
            }
        })
        if ($ofLinux -and $known.Count -eq 0) {
            $file
        }
    }
}

function Set-WinhostEfiBackup {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('kept')
    Assert-WinhostAdministrator
    Assert-WinhostBoolean $Desired @('kept')
    foreach ($each in @(Find-WinhostEfiPartitions)) {
        if ($each.guid -eq "$($Key.partition)") {
            $root = Read-WinhostPartitionRoot $each.found
            if ($Desired.kept) {
                Add-WinhostEfiCopy $each.guid $root
            }
            else {
                Restore-WinhostEfiCopy $each.guid $root $How
            }
        }
    }
}

function Add-WinhostEfiCopy {
    param([string]$Guid, [string]$Root)
    $folder = Read-WinhostEfiFolder $Guid
    Initialize-WinhostDataFolder "esp-$Guid"
    $files = @(foreach ($file in @(Read-WinhostVolumeFiles $Root)) {
        if ($null -ne $file.sha256) {
            Copy-WinhostVolumeFile "$Root$($file.path)" "$folder\$($file.sha256)"
            @{ path = $file.path; sha256 = $file.sha256 }
        }
    })
    $entries = @(foreach ($entry in @(Find-WinhostPartitionBootEntries $Guid)) { $entry.path })
    Write-WinhostJson "$folder\files.json" @{ files = $files; entries = $entries }
}

function Restore-WinhostEfiCopy {
    param([string]$Guid, [string]$Root, $How)
    Assert-WinhostDataConsent $How 'Files of the EFI system partition would be written'
    $folder = Read-WinhostEfiFolder $Guid
    Remove-WinhostNewBootEntries $Guid
    $copy = @((Read-WinhostEfiList $Guid).files)
    $now = @(Read-WinhostVolumeFiles $Root)
    foreach ($file in @(Select-WinhostChangedFiles $copy $now)) {
        Copy-WinhostVolumeFile "$folder\$($file.sha256)" "$Root$($file.path)"
    }
    foreach ($file in @(Select-WinhostAddedFiles $copy $now)) {
        Remove-WinhostVolumeFile "$Root$($file.path)"
    }
    $remaining = @(Select-WinhostChangedFiles $copy @(Read-WinhostVolumeFiles $Root))
    if ($remaining.Count -gt 0) {
        Stop-Winhost 'Winhost.NotPutBack' 'InvalidResult' "$($remaining[0].path) on the EFI system partition is not as it was."
    }
    Remove-WinhostFolder $folder
}
