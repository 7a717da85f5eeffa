# key {name: installer}   state {made: bool or null, partition: guid or null, path: text or null, entry: text or null}; how {accept: data}
function Get-WinhostOwnBootEntry {
    param($Key)
    Assert-WinhostAdministrator
    if ($null -ne $Key -or (Test-WinhostRecords)) {
        Assert-WinhostPart 'Read-WinhostOwnBootEntries'
        Read-WinhostOwnBootEntries $Key
    }
}

function Read-WinhostOwnBootEntries {
    param($Key)
    foreach ($each in @(Find-WinhostRecords 'boot' $Key)) {
        $state = @{ made = $null; partition = "$($each.record.partition)"; path = "$($each.record.path)"; entry = $null }
        $found = Find-WinhostOwnEntry $each.name $each.record
        if ($null -ne $found) {
            $state.made = $true
            $state.entry = $found.entry
        }
        @{ key = @{ name = $each.name }; state = $state }
    }
    if ($null -ne $Key) {
        $state = @{ made = $false; partition = $null; path = $null; entry = $null }
        @{ key = @{ name = "$(Read-WinhostField $Key 'name')" }; state = $state }
    }
}

function Find-WinhostOwnEntry {
    param([string]$Name, $Record)
    # Finds the entry by description, partition and path, because the firmware may give its number to another entry.
    if ((Read-WinhostFirmwareKind) -cne 'uefi') {
        return
    }
    foreach ($entry in @(Read-WinhostBootEntries)) {
        $same = Test-WinhostText $entry.path "$($Record.path)" 'OrdinalIgnoreCase'
        if ($entry.description -ceq "winhost-$Name" -and "$($entry.partition)" -eq "$($Record.partition)" -and $same) {
            return $entry
        }
    }
}

function Set-WinhostOwnBootEntry {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('made', 'partition', 'path')
    Assert-WinhostAdministrator
    $name = "$($Key.name)"
    if ($name -cne 'installer') {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'winhost makes the boot entry installer.'
    }
    Assert-WinhostBoolean $Desired @('made')
    Assert-WinhostPattern $Desired 'partition' $script:WinhostGuidForm 'the GUID of a partition'
    Assert-WinhostPattern $Desired 'path' '\A(\\[A-Za-z0-9._-]{1,40}){1,8}\.(efi|EFI)\z' 'one such as \EFI\boot\bootx64.efi'
    if (-not (Test-WinhostDesired $Desired 'made')) {
        Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' 'A boot entry stays what it is: take it away first.'
    }
    Assert-WinhostDataConsent $How 'Firmware variables would be written'
    if (-not $Desired.made) {
        Remove-WinhostOwnBootEntry $name
        return
    }
    Assert-WinhostRequired $Desired @('partition', 'path') 'A boot entry is made with all of these.'
    Add-WinhostOwnBootEntry $name $Desired
}

# ---- creating and removing

function Add-WinhostOwnBootEntry {
    param([string]$Name, $Desired)
    Assert-WinhostUefi
    $mine = @{ partition = "$($Desired.partition)"; path = "$($Desired.path)" }
    $bytes = ConvertTo-WinhostLoadOption "winhost-$Name" $mine
    Write-WinhostRecord 'boot' $Name $mine
    if ($null -ne (Find-WinhostOwnEntry $Name $mine)) {
        return
    }
    $number = Find-WinhostFreeEntry
    Write-WinhostFirmwareVariable "Boot$number" $script:WinhostGlobalVariables $bytes
    # The entry is added at the end of the order, so that the first entry remains the first.
    Write-WinhostBootOrder (@(Read-WinhostBootNumbers 'BootOrder') + $number)
    if ($null -eq (Find-WinhostOwnEntry $Name $mine)) {
        Stop-Winhost 'Winhost.FirmwareForgot' 'InvalidResult' "The firmware took the boot entry $number and does not have it."
    }
}

function Assert-WinhostUefi {
    if ((Read-WinhostFirmwareKind) -cne 'uefi') {
        Stop-Winhost 'Winhost.NotUefi' 'InvalidOperation' 'Windows was started by a BIOS, which has no boot entries.'
    }
}

function Find-WinhostFreeEntry {
    for ($number = 16; $number -lt 256; $number++) {
        $name = '{0:X4}' -f $number
        if ($null -eq (Read-WinhostFirmwareVariable "Boot$name" $script:WinhostGlobalVariables)) {
            return $name
        }
    }
    Stop-Winhost 'Winhost.FirmwareFull' 'LimitsExceeded' 'The firmware has no number left for a boot entry.'
}

function Write-WinhostBootOrder {
    param([string[]]$Numbers)
    $bytes = @(foreach ($number in $Numbers) { [System.BitConverter]::GetBytes([System.Convert]::ToUInt16($number, 16)) })
    Write-WinhostFirmwareVariable 'BootOrder' $script:WinhostGlobalVariables ([byte[]]$bytes)
    if ((@(Read-WinhostBootNumbers 'BootOrder') -join ',') -cne ($Numbers -join ',')) {
        Stop-Winhost 'Winhost.FirmwareForgot' 'InvalidResult' 'The firmware took a boot order and has another one.'
    }
}

function ConvertTo-WinhostLoadOption {
    param([string]$Description, $Mine)
    # Builds an active load option with a partition by its GUID and a file on it, without optional data: boot loaders of
    # Linux would take the data that bcdedit adds for a file name.
    foreach ($each in @(Find-WinhostPartitions)) {
        if ($each.guid -eq $Mine.partition) {
            $sector = [long]$each.disk.LogicalSectorSize
            $text = [System.Text.Encoding]::Unicode
            $file = $text.GetBytes("$($Mine.path)`0")
            $drive = @([byte]4, [byte]1) + [System.BitConverter]::GetBytes([uint16]42)
            $drive += [System.BitConverter]::GetBytes([uint32]$each.found.PartitionNumber)
            $drive += [System.BitConverter]::GetBytes([long]([long]$each.found.Offset / $sector))
            $drive += [System.BitConverter]::GetBytes([long]([long]$each.found.Size / $sector))
            $drive += (New-Object -TypeName System.Guid -ArgumentList $Mine.partition).ToByteArray() + @([byte]2, [byte]2)
            $path = $drive + @([byte]4, [byte]4) + [System.BitConverter]::GetBytes([uint16](4 + $file.Length)) + $file
            $path += @([byte]127, [byte]255, [byte]4, [byte]0)
            $head = [System.BitConverter]::GetBytes([uint32]1) + [System.BitConverter]::GetBytes([uint16]$path.Length)
            return , ([byte[]]($head + $text.GetBytes("$Description`0") + $path))
        }
    }
    Stop-Winhost 'Winhost.WrongState' 'ObjectNotFound' "There is no partition $($Mine.partition) for the boot entry: make that first."
}

function Remove-WinhostOwnBootEntry {
    param([string]$Name)
    $record = Find-WinhostRecord 'boot' $Name
    if ($null -ne $record) {
        foreach ($entry in @(Find-WinhostOwnEntry $Name $record)) {
            Remove-WinhostBootEntry $entry
        }
        Write-WinhostRecord 'boot' $Name $null
    }
}

function Remove-WinhostBootEntry {
    param($Entry)
    # Removes it from the order first, because some firmware fails with an order that names a missing entry.
    Write-WinhostBootOrder @(@(Read-WinhostBootNumbers 'BootOrder') -cne $Entry.entry)
    Write-WinhostFirmwareVariable "Boot$($Entry.entry)" $script:WinhostGlobalVariables @()
}
