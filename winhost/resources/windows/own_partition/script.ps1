# key {name: linux | staging | efi}   state {made: bool or null, ours: bool, disk: guid or null, offset: bytes or null, size: bytes or null, label: text or null, partition: guid or null}; how {accept: data}
$script:WinhostLinuxType = '{0fc63daf-8483-4772-8e79-3d69d8477de4}'
$script:WinhostEfiType = '{c12a7328-f81f-11d2-ba4b-00a0c93ec93b}'
$script:WinhostDataType = '{ebd0a0a2-b9e5-4433-87c0-68b6b72699c7}'

function Get-WinhostOwnPartition {
    param($Key)
    if ($null -ne $Key -or (Test-WinhostRecords)) {
        Assert-WinhostPart 'Read-WinhostOwnPartitions'
        Read-WinhostOwnPartitions $Key
    }
}

function Read-WinhostOwnPartitions {
    param($Key)
    foreach ($entry in @(Find-WinhostRecords 'partition' $Key)) {
        $record = $entry.record
        $state = New-WinhostAbsentPartition
        $state.made = $null
        $state.disk = "$($record.disk)"
        $state.offset = [long]$record.offset
        $state.size = [long]$record.size
        $state.label = "$($record.label)"
        $state.partition = $record.partition
        $found = Find-WinhostOwnPartition $record
        if ($null -ne $found) {
            $state.ours = $true
            $state.partition = $found.guid
            if ($record.complete) {
                $state.made = $true
            }
        }
        @{ key = @{ name = $entry.name }; state = $state }
    }
    if ($null -ne $Key) {
        @{ key = @{ name = "$(Read-WinhostField $Key 'name')" }; state = New-WinhostAbsentPartition }
    }
}

function New-WinhostAbsentPartition {
    $state = @{ made = $false; ours = $false; disk = $null; offset = $null; size = $null; label = $null; partition = $null }
    $state
}

function Find-WinhostOwnPartition {
    param($Record)
    # Finds the partition by its offset and size, and by its GUID if that is recorded.
    foreach ($each in @(Find-WinhostPartitions)) {
        $there = (ConvertTo-WinhostGuid $each.disk.Guid) -eq "$($Record.disk)" -and [long]$each.found.Offset -eq [long]$Record.offset
        $same = $null -eq $Record.partition -or $each.guid -eq "$($Record.partition)"
        if ($there -and $same -and [long]$each.found.Size -eq [long]$Record.size) {
            return $each
        }
    }
}

function Set-WinhostOwnPartition {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('made', 'disk', 'offset', 'size', 'label')
    Assert-WinhostAdministrator
    $name = "$($Key.name)"
    if (@('linux', 'staging', 'efi') -cnotcontains $name) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'winhost makes the partitions linux, staging and efi.'
    }
    Assert-WinhostPartitionDesired $Desired
    if (-not (Test-WinhostDesired $Desired 'made')) {
        Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' 'A partition stays where it is and as large as it is: take it away first.'
    }
    Assert-WinhostDataConsent $How 'A partition table would be written'
    $record = Find-WinhostRecord 'partition' $name
    if (-not $Desired.made) {
        Remove-WinhostOwnPartition $name $record
        return
    }
    if ($name -cne 'linux' -and (Read-WinhostField $Desired 'label') -cne 'WINHOST') {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'FAT32 has labels of eleven characters: that of staging and efi is WINHOST.'
    }
    Assert-WinhostRequired $Desired @('disk', 'offset', 'size', 'label') 'A partition is made with all of these.'
    Add-WinhostOwnPartition $name $record $Desired
}

function Assert-WinhostPartitionDesired {
    param($Desired)
    Assert-WinhostBoolean $Desired @('made')
    foreach ($part in @('offset', 'size')) {
        $bytes = Read-WinhostField $Desired $part
        if ($null -ne $bytes -and ("$bytes" -notmatch '\A[1-9][0-9]{0,17}\z' -or $bytes -is [string] -or $bytes % 1048576 -ne 0)) {
            Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' "$part is in bytes, in steps of 1 MiB."
        }
    }
    Assert-WinhostPattern $Desired 'disk' $script:WinhostGuidForm 'the GUID of a disk'
    Assert-WinhostPattern $Desired 'label' '\AWINHOST(-[0-9a-f]{8})?\z' 'WINHOST, or that and eight digits'
}

# ---- creating and removing

function Add-WinhostOwnPartition {
    param([string]$Name, $Record, $Desired)
    $mine = @{ disk = "$($Desired.disk)"; offset = [long]$Desired.offset; size = [long]$Desired.size; label = "$($Desired.label)"; partition = $null; complete = $false }
    $found = $null
    if ($null -ne $Record) {
        if ("$($Record.disk)" -cne $mine.disk -or [long]$Record.offset -ne $mine.offset -or [long]$Record.size -ne $mine.size) {
            Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' "winhost made $Name elsewhere: take that away first."
        }
        $mine.partition = $Record.partition
        $found = Find-WinhostOwnPartition $Record
    }
    if ($null -eq $found) {
        $disk = Find-WinhostDisk $mine.disk
        Assert-WinhostFreeSpace $mine
        # The record is written first, so that a partition with this offset and size is known to be winhost's.
        $mine.partition = $null
        Write-WinhostRecord 'partition' $Name $mine
        $made = New-Partition -DiskNumber $disk.Number -Offset $mine.offset -Size $mine.size -GptType $script:WinhostDataType -ErrorAction Stop
        $script:WinhostCache = @{}
        $found = Find-WinhostOwnPartition ([PSCustomObject]$mine)
        if ($null -eq $found) {
            $why = "Windows made it at $($made.Offset) with $($made.Size) bytes, and not at $($mine.offset) with $($mine.size)."
            Stop-Winhost 'Winhost.NotThere' 'InvalidResult' $why
        }
    }
    $mine.partition = $found.guid
    Write-WinhostRecord 'partition' $Name $mine
    Format-WinhostOwnPartition $Name $found.found $mine.label
    $mine.complete = $true
    Write-WinhostRecord 'partition' $Name $mine
}

function Find-WinhostDisk {
    param([string]$Guid)
    $found = @(foreach ($disk in @(Read-WinhostDisks)) {
        if ((ConvertTo-WinhostGuid $disk.Guid) -eq $Guid) {
            $disk
        }
    })
    if ($found.Count -ne 1) {
        Stop-Winhost 'Winhost.NoSuchDisk' 'ObjectNotFound' "$($found.Count) disks of this host have the GUID $Guid, and one is needed."
    }
    $found[0]
}

function Assert-WinhostFreeSpace {
    param($Mine)
    foreach ($each in @(Find-WinhostPartitions)) {
        $begin = [long]$each.found.Offset
        $beside = $begin -ge $Mine.offset + $Mine.size -or $begin + [long]$each.found.Size -le $Mine.offset
        if ((ConvertTo-WinhostGuid $each.disk.Guid) -eq $Mine.disk -and -not $beside) {
            Stop-Winhost 'Winhost.NotFree' 'ResourceExists' "The partition $($each.guid) is there, in the way."
        }
    }
}

function Format-WinhostOwnPartition {
    param([string]$Name, $Partition, [string]$Title)
    $fileSystem = @{ linux = 'NTFS'; staging = 'FAT32'; efi = 'FAT32' }[$Name]
    Unprotect-WinhostPartition $Partition
    # A quick format removes the file systems of other systems.
    $null = Format-Volume -Partition $Partition -FileSystem $fileSystem -NewFileSystemLabel $Title -Confirm:$false -ErrorAction Stop
    Set-Partition -InputObject $Partition -NoDefaultDriveLetter $true -ErrorAction Stop
    # The type is set last, because Windows neither formats partitions of foreign types nor gives them a letter.
    $type = @{ linux = $script:WinhostLinuxType; efi = $script:WinhostEfiType }[$Name]
    if ($null -ne $type) {
        Set-Partition -InputObject $Partition -GptType $type -ErrorAction Stop
    }
}

function Remove-WinhostOwnPartition {
    param([string]$Name, $Record)
    if ($null -eq $Record) {
        return
    }
    $found = Find-WinhostOwnPartition $Record
    if ($null -eq $found -and $null -ne $Record.partition) {
        foreach ($each in @(Find-WinhostPartitions)) {
            if ($each.guid -eq "$($Record.partition)") {
                Stop-Winhost 'Winhost.NotOurs' 'InvalidOperation' "The partition $($each.guid) is not where winhost put it, or not as large any more: winhost leaves it alone."
            }
        }
    }
    if ($null -ne $found) {
        if ($Name -ceq 'efi') {
            # These entries would start from the removed partition.
            foreach ($entry in @(Find-WinhostPartitionBootEntries $found.guid)) {
                Remove-WinhostBootEntry $entry
            }
        }
        Unprotect-WinhostPartition $found.found
        Remove-Partition -InputObject $found.found -Confirm:$false -ErrorAction Stop
    }
    Write-WinhostRecord 'partition' $Name $null
}
