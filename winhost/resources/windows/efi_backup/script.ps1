# key {partition: guid}   state {kept: bool, changed: [text], added: [text]}; set: kept; how {accept: data}
function Get-WinhostEfiBackup {
    Assert-WinhostAdministrator
    foreach ($each in @(Find-WinhostEfiPartitions)) {
        $state = @{ kept = $false; changed = @(); added = @() }
        if (Test-WinhostFolder (Read-WinhostEfiFolder $each.guid)) {
            Assert-WinhostSent 'Read-WinhostEfiState'
            Read-WinhostEfiState $each $state
        }
        @{ key = @{ partition = $each.guid }; state = $state }
    }
}

function Read-WinhostEfiState {
    param($Partition, $State)
    $copy = Read-WinhostEfiCopy $Partition.guid
    if ($null -ne $copy) {
        $now = @(Read-WinhostVolumeFiles (Read-WinhostPartitionRoot $Partition.found))
        $State.kept = $true
        $State.changed = @(foreach ($file in @(Select-WinhostChanged $copy $now)) { $file.path })
        $State.added = @(foreach ($file in @(Select-WinhostAdded $copy $now)) { $file.path })
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
    "$(Read-WinhostProgramData)\winhost\esp-$Guid"
}

function Read-WinhostEfiList {
    param([string]$Guid)
    # It is written last: without it there is no whole copy.
    Read-WinhostJson "$(Read-WinhostEfiFolder $Guid)\files.json"
}

function Read-WinhostEfiCopy {
    param([string]$Guid)
    $list = Read-WinhostEfiList $Guid
    if ($null -eq $list) {
        return $null
    }
    , @($list.files)
}

function Find-WinhostEntriesOfLinux {
    param([string]$Guid)
    # Boot entries that start a Linux from this partition.
    if ((Read-WinhostFirmwareKind) -cne 'uefi') {
        return
    }
    foreach ($entry in @(Read-WinhostBootEntries)) {
        if ("$($entry.partition)" -eq $Guid -and "$($entry.path)" -match '\\EFI\\(ubuntu|debian)\\') {
            $entry
        }
    }
}

function Remove-WinhostEntriesSince {
    param([string]$Guid)
    # Without a list nobody can tell which came later.
    $list = Read-WinhostEfiList $Guid
    if ($null -eq $list -or -not (Test-WinhostDesired $list 'entries')) {
        return
    }
    $known = @($list.entries)
    foreach ($entry in @(Find-WinhostEntriesOfLinux $Guid)) {
        if ($known -notcontains $entry.path) {
            Remove-WinhostBootEntry $entry
        }
    }
}

function Select-WinhostChanged {
    param($Copy, $Now)
    # What is open now has no hash: nobody can tell, and nobody could write it.
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

function Select-WinhostAdded {
    param($Copy, $Now)
    # Only where installers of Linux put things: what somebody else put elsewhere is his.
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
    Assert-WinhostFlags $Desired @('kept')
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
    Initialize-WinhostFolder "$(Read-WinhostProgramData)\winhost" 'ours'
    Initialize-WinhostFolder $folder 'ours'
    $files = @(foreach ($file in @(Read-WinhostVolumeFiles $Root)) {
        if ($null -ne $file.sha256) {
            Copy-WinhostVolumeFile "$Root$($file.path)" "$folder\$($file.sha256)"
            @{ path = $file.path; sha256 = $file.sha256 }
        }
    })
    $kept = @{ files = $files; entries = @(foreach ($entry in @(Find-WinhostEntriesOfLinux $Guid)) { $entry.path }) }
    $text = ConvertTo-WinhostAscii (ConvertTo-Json -InputObject $kept -Depth 5 -Compress -ErrorAction Stop)
    Write-WinhostFile "$folder\files.json" ([System.Text.Encoding]::ASCII.GetBytes($text))
}

function Restore-WinhostEfiCopy {
    param([string]$Guid, [string]$Root, $How)
    if (-not (Test-WinhostAccepted $How 'data')) {
        Stop-Winhost 'Winhost.HoldsData' 'ResourceBusy' 'Files of the EFI system partition would be written, without the consent for it.'
    }
    $folder = Read-WinhostEfiFolder $Guid
    Remove-WinhostEntriesSince $Guid
    $copy = Read-WinhostEfiCopy $Guid
    $now = @(Read-WinhostVolumeFiles $Root)
    foreach ($file in @(Select-WinhostChanged $copy $now)) {
        Copy-WinhostVolumeFile "$folder\$($file.sha256)" "$Root$($file.path)"
    }
    foreach ($file in @(Select-WinhostAdded $copy $now)) {
        Remove-WinhostVolumeFile "$Root$($file.path)"
    }
    $left = @(Select-WinhostChanged $copy @(Read-WinhostVolumeFiles $Root))
    if ($left.Count -gt 0) {
        Stop-Winhost 'Winhost.NotPutBack' 'InvalidResult' "$($left[0].path) on the EFI system partition is not as it was."
    }
    Remove-WinhostFolder $folder
}
