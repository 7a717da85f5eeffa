# key {}   state {system: windows | linux-next, linux: text or null, installer: text or null}; set: system
function Get-WinhostRunningSystem {
    param($Key)
    Assert-WinhostAdministrator
    $state = @{ system = 'windows'; linux = $null; installer = $null }
    if ((Read-WinhostFirmwareKind) -ceq 'uefi') {
        $plain = $null -eq $Key
        if ($plain -and (Test-WinhostRecords)) {
            Assert-WinhostPart 'Test-WinhostLinuxRecord'
            $plain = -not (Test-WinhostLinuxRecord)
        }
        if ($plain) {
            # If winhost has set up no dual boot, the output of bcdedit is sufficient, and no C# is compiled.
            $entries = @(Read-WinhostBcdEntries)
            $linux = @(Select-WinhostLinuxEntries $entries)
            $starts = @($linux | ForEach-Object -Process { $_.id })
            $next = "$(foreach ($each in $entries) { if ($each.id -eq '{fwbootmgr}') { $each.bootsequence } })"
        }
        else {
            Assert-WinhostPart 'Find-WinhostLinuxEntries', 'Find-WinhostInstallerEntry', 'Read-WinhostBootNumber'
            $linux = @(Find-WinhostLinuxEntries)
            $state.installer = Find-WinhostInstallerEntry
            $starts = @(@($linux | ForEach-Object -Process { $_.entry }) + $state.installer)
            $next = Read-WinhostBootNumber 'BootNext'
        }
        if ($linux.Count -gt 0) {
            $state.linux = $linux[0].path
        }
        if ("$next" -ne '' -and $starts -ccontains $next) {
            $state.system = 'linux-next'
        }
    }
    @{ key = @{}; state = $state }
}

function Test-WinhostLinuxRecord {
    $null -ne (Find-WinhostRecord 'partition' 'linux') -or $null -ne (Find-WinhostRecord 'boot' 'installer')
}

function Select-WinhostLinuxEntries {
    param($Entries)
    foreach ($entry in @($Entries)) {
        if ("$($entry.path)" -match '\\(ubuntu\\(shim|grub)|debian\\shim)x64\.efi\z') {
            $entry
        }
    }
}

function Find-WinhostLinuxEntries {
    $from = Find-WinhostLinuxEfiPartition
    foreach ($entry in @(Select-WinhostLinuxEntries @(Read-WinhostBootEntries))) {
        if (@('any', "$($entry.partition)") -ccontains $from) {
            $entry
        }
    }
}

function Find-WinhostInstallerEntry {
    foreach ($made in @(Get-WinhostOwnBootEntry ([PSCustomObject]@{ name = 'installer' }))) {
        if ($null -ne $made.state.entry) {
            return $made.state.entry
        }
    }
}

function Find-WinhostLinuxEfiPartition {
    # Returns the GUID of the EFI system partition from which the Linux starts: 'any' if winhost created no partition for a
    # Linux; nothing if it did, but the installer has not yet written that partition's label to the boot loader's folder.
    # Until then, other entries that start an Ubuntu belong to an older installation.
    $record = Find-WinhostRecord 'partition' 'linux'
    if ($null -eq $record) {
        return 'any'
    }
    $mark = Measure-WinhostText "$($record.label)`n"
    foreach ($each in @(Find-WinhostEfiPartitions)) {
        if ((Read-WinhostVolumeHash "$(Read-WinhostPartitionRoot $each.found)EFI\ubuntu\winhost.txt") -ceq $mark) {
            return $each.guid
        }
    }
}

function Set-WinhostRunningSystem {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('system')
    Assert-WinhostAdministrator
    if (@('windows', 'linux') -cnotcontains $Desired.system) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'system is windows or linux.'
    }
    Assert-WinhostUefi
    if ($Desired.system -ceq 'windows') {
        # Windows runs already: only a pending start of Linux is cancelled.
        if ((Get-WinhostRunningSystem $Key).state.system -cne 'windows') {
            Set-WinhostFirmwareBoot $null ([PSCustomObject]@{ next = $null }) $How
        }
        return
    }
    $next = Find-WinhostInstallerEntry
    foreach ($entry in @(Find-WinhostLinuxEntries)) {
        $next = $entry.entry
        break
    }
    if ($null -eq $next) {
        Stop-Winhost 'Winhost.NoLinux' 'ObjectNotFound' 'No boot entry starts a Linux, or an installer of one that winhost made.'
    }
    if ((Read-WinhostBootNumber 'BootNext') -cne $next) {
        Set-WinhostFirmwareBoot $null ([PSCustomObject]@{ next = $next }) $How
    }
    @{ restart = @(@{ system = 'host' }) }
}
