# key {name: text}   state {made: bool or null, image: sha256 or null, size: bytes or null, file_size: bytes or null, path: text or null, vm: guid or null}; set: made, image, size; how {accept: data}
function Get-WinhostVmDisk {
    param($Key)
    # Fails for users who cannot see VMs, even if there is no disk.
    $null = @(Find-WinhostVms $null)
    if ($null -ne $Key -or (Test-WinhostRecords)) {
        Assert-WinhostPart 'Read-WinhostVmDisks'
        Read-WinhostVmDisks $Key
    }
}

function Read-WinhostVmDisks {
    param($Key)
    foreach ($entry in @(Find-WinhostRecords 'disk' $Key)) {
        $state = @{ made = $null; image = $null; size = $null; file_size = $null; path = $entry.record.path; vm = $null }
        if ($entry.record.complete) {
            # If the folder cannot be read, the disk is unknown, not missing.
            $state.made = Read-WinhostValue { Test-WinhostFile $entry.record.path }
        }
        if ($state.made) {
            $state.image = $entry.record.image
            $state.size = Read-WinhostValue { [long](Get-VHD -Path $entry.record.path -ErrorAction Stop).Size }
            $state.file_size = Read-WinhostValue { [long](Read-WinhostLength $entry.record.path) }
            $state.vm = Read-WinhostValue { Find-WinhostDiskUser $entry.record.path }
        }
        elseif ($entry.record.complete) {
            # Somebody removed the disk. Its record still has to be removed.
            $state.made = $null
        }
        @{ key = @{ name = $entry.name }; state = $state }
    }
    if ($null -ne $Key) {
        $state = @{ made = $false; image = $null; size = $null; file_size = $null; path = $null; vm = $null }
        @{ key = @{ name = "$(Read-WinhostField $Key 'name')" }; state = $state }
    }
}

function Set-WinhostVmDisk {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('made', 'image', 'size')
    Assert-WinhostVmName $Key
    Assert-WinhostBoolean $Desired @('made')
    Assert-WinhostPattern $Desired 'image' '^[0-9a-f]{64}\z' 'the SHA-256 of a staged file'
    Assert-WinhostInteger $Desired 'size' 1048576 70368744177664
    $name = "$($Key.name)"
    $record = Find-WinhostRecord 'disk' $name
    if (Test-WinhostDesired $Desired 'made') {
        if ($Desired.made) {
            Add-WinhostVmDisk $name $record $Desired
        }
        else {
            Remove-WinhostVmDisk $name $record $How
        }
        return
    }
    if ($null -eq $record -or -not $record.complete) {
        Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' "winhost made no disk for $name."
    }
    if (Test-WinhostDesired $Desired 'image') {
        Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' 'The disk was made of another image: take it away first.'
    }
    if ($null -ne $Desired.size) {
        Resize-WinhostDisk $record.path $Desired.size
    }
}

# ---- records in the registry of what winhost creates: disks, VMs, seeds, NATs, partitions, boot entries, installers

function Assert-WinhostVmName {
    param($Key)
    # The name becomes part of paths, and the host name of the guest.
    if ("$($Key.name)" -cnotmatch '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\z') {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'That is no name for a VM: lower-case letters, digits and dashes between them.'
    }
    if ("$($Key.name)" -match '^(con|prn|aux|nul|com[0-9]|lpt[0-9])\z') {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' "$($Key.name) is a device of Windows."
    }
}

function Find-WinhostRecords {
    param([string]$Kind, $Key)
    # Returns the records of one kind, or only the one that the key names.
    $requested = Read-WinhostField $Key 'name'
    $records = Open-WinhostRegistry $script:WinhostRecordsKey
    if ($null -eq $records) {
        return
    }
    foreach ($entry in @($records.GetValueNames() | Sort-Object)) {
        if ($entry -cnotmatch '^(vm|disk|seed|nat|partition|boot|ubuntu) ([a-z0-9-]{1,63})\z' -or $Matches[1] -cne $Kind) {
            continue
        }
        $name = $Matches[2]
        if ($null -eq $requested -or (Test-WinhostText $name $requested 'OrdinalIgnoreCase')) {
            @{ name = $name; record = ConvertFrom-Json -InputObject "$($records.GetValue($entry))" -ErrorAction Stop }
        }
    }
    $records.Close()
}

function Test-WinhostRecords {
    # Tests whether winhost has any records on this host. Without records, the functions that read them are not sent.
    Test-WinhostRegistry $script:WinhostRecordsKey
}

function Find-WinhostRecord {
    param([string]$Kind, [string]$Name)
    foreach ($entry in @(Find-WinhostRecords $Kind ([PSCustomObject]@{ name = $Name }))) {
        return $entry.record
    }
}

function Write-WinhostRecord {
    param([string]$Kind, [string]$Name, $Record)
    # Writes a record. Null removes it.
    $text = $null
    if ($null -ne $Record) {
        $text = ConvertTo-WinhostAscii (ConvertTo-Json -InputObject $Record -Depth 5 -Compress -ErrorAction Stop)
    }
    Write-WinhostRegistry $script:WinhostRecordsKey "$Kind $Name" $text
}

function Read-WinhostVmStore {
    "$((Get-VMHost -ErrorAction Stop).VirtualHardDiskPath)".TrimEnd('\') + '\winhost'
}

function Find-WinhostDiskUser {
    param([string]$Path)
    foreach ($vm in @(Find-WinhostVms $null)) {
        foreach ($drive in @(Get-VMHardDiskDrive -VM $vm -ErrorAction Stop)) {
            if (Test-WinhostText "$($drive.Path)" $Path 'OrdinalIgnoreCase') {
                return "$($vm.Id)"
            }
        }
    }
}

# ---- creating and removing

function Add-WinhostVmDisk {
    param([string]$Name, $Record, $Desired)
    Assert-WinhostRequired $Desired @('image', 'size') 'A disk is made of a staged file, and with a size.'
    $staged = Find-WinhostStagedFile $Desired.image
    $store = Read-WinhostVmStore
    $folder = "$store\$Name"
    $path = "$folder\disk.vhdx"
    # A disk that winhost has not completed contains no data, and may be overwritten.
    $begun = $null -ne $Record -and (Test-WinhostText "$($Record.path)" $path 'OrdinalIgnoreCase')
    if (-not $begun -and -not (Test-WinhostEmptyPath $folder)) {
        Stop-Winhost 'Winhost.NotOurs' 'InvalidOperation' "There is something in $folder that winhost did not make."
    }
    if ($begun -and $null -ne (Find-WinhostDiskUser $path)) {
        Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' "$path is attached to a VM."
    }
    foreach ($each in @($store, $folder)) {
        Initialize-WinhostFolder $each 'machines'
    }
    Assert-WinhostDiskAttributes $folder
    Assert-WinhostDiskSpace $folder $Desired.size
    Write-WinhostRecord 'disk' $Name @{ image = $Desired.image; path = $path; complete = $false }
    Remove-WinhostFile $path
    # The file is copied and not moved: a moved file would keep the rights of a folder that all users can read.
    if ((Copy-WinhostSource $staged $path) -cne $Desired.image) {
        Remove-WinhostFile $path
        Stop-Winhost 'Winhost.WrongHash' 'InvalidData' "$staged changed while it was copied."
    }
    Assert-WinhostDiskAttributes $path
    Assert-WinhostDiskFormat $path
    Resize-WinhostDisk $path $Desired.size
    Write-WinhostRecord 'disk' $Name @{ image = $Desired.image; path = $path; complete = $true }
}

function Assert-WinhostDiskAttributes {
    param([string]$Path)
    # Hyper-V starts no VM from a file with these attributes (0xC03A001A), which files inherit from their folder.
    $attributes = @(Find-WinhostBlockingAttributes $Path)
    if ($attributes.Count -gt 0) {
        $why = "$Path is $($attributes -join ', '), and Hyper-V uses no such disk. Take that from its folder: compact /u, cipher /d, Set-FileIntegrity."
        Stop-Winhost 'Winhost.DiskAttributes' 'InvalidOperation' $why
    }
}

function Assert-WinhostDiskSpace {
    param([string]$Folder, [long]$Size)
    # Requires space for the maximum size of the disk and 4 GiB more, because on a full volume every VM pauses.
    $free = [long](Get-Volume -FilePath $Folder -ErrorAction Stop).SizeRemaining
    if ($free -lt $Size + 4294967296) {
        Stop-Winhost 'Winhost.NoRoom' 'ResourceUnavailable' "$Folder has $free bytes left, and the disk can grow to $Size; 4 GiB must remain."
    }
}

function Assert-WinhostDiskFormat {
    param([string]$Path)
    $disk = Get-VHD -Path $Path -ErrorAction Stop
    if ("$($disk.VhdFormat)" -cne 'VHDX' -or "$($disk.VhdType)" -ceq 'Differencing') {
        Stop-Winhost 'Winhost.WrongDisk' 'InvalidData' "It is a $($disk.VhdFormat) of type $($disk.VhdType), and no VHDX that stands alone."
    }
    # Test-VHD reports a fault by an error or by returning false.
    if ((Test-VHD -Path $Path -ErrorAction Stop) -eq $false) {
        Stop-Winhost 'Winhost.WrongDisk' 'InvalidData' "Test-VHD finds that $Path cannot be used."
    }
}

function Resize-WinhostDisk {
    param([string]$Path, [long]$Size)
    $now = [long](Get-VHD -Path $Path -ErrorAction Stop).Size
    if ($now -gt $Size) {
        Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' "The disk has $now bytes already, and winhost makes none smaller."
    }
    if ($now -lt $Size) {
        Resize-VHD -Path $Path -SizeBytes $Size -ErrorAction Stop
    }
}

function Remove-WinhostVmDisk {
    param([string]$Name, $Record, $How)
    if ($null -eq $Record) {
        return
    }
    Assert-WinhostDataConsent $How 'What is on the disk would be lost'
    $path = "$($Record.path)"
    $user = Find-WinhostDiskUser $path
    if ($null -ne $user) {
        Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' "The disk is attached to the VM $user."
    }
    $folder = Split-WinhostPath $path
    Assert-WinhostOwnFile $Name $path 'disk.vhdx'
    Assert-WinhostNoLink $path
    Remove-WinhostFile $path
    # Hyper-V leaves these folders when a VM is removed.
    foreach ($each in @("$folder\Virtual Machines", "$folder\Snapshots", $folder)) {
        if (-not (Remove-WinhostEmptyFolder $each)) {
            Stop-Winhost 'Winhost.NotEmpty' 'ResourceExists' "$each is not empty: something else was put there."
        }
    }
    Write-WinhostRecord 'disk' $Name $null
}

function Assert-WinhostOwnFile {
    param([string]$Name, [string]$Path, [string]$File)
    # Independent of the record, the file must be this one in winhost's folder.
    if (-not $Path.EndsWith("\winhost\$Name\$File", [System.StringComparison]::OrdinalIgnoreCase)) {
        Stop-Winhost 'Winhost.NotOurs' 'InvalidOperation' "$Path is in no folder of winhost's."
    }
}

# ---- files, without cmdlets

function Test-WinhostFile {
    param([string]$Path)
    $found = Read-WinhostAttributes $Path
    $null -ne $found -and -not ($found -band [System.IO.FileAttributes]::Directory)
}

function Find-WinhostBlockingAttributes {
    param([string]$Path)
    # Returns the attributes of a file or folder that keep Hyper-V from using it, by their names in .NET.
    $found = [System.IO.File]::GetAttributes($Path)
    foreach ($name in @('SparseFile', 'Compressed', 'Encrypted', 'IntegrityStream')) {
        if ($found -band [System.IO.FileAttributes]$name) {
            $name
        }
    }
}
