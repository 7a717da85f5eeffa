# key {partition: guid}   state {smallest: bytes, largest: bytes, free: bytes, health: text, holders: [page-file | hibernation-file | shadow-copies], last_held_by: text or null}
function Get-WinhostResizeLimit {
    Assert-WinhostAdministrator
    foreach ($each in @(Find-WinhostPartitions)) {
        if ([bool]$each.found.IsBoot) {
            @{ key = @{ partition = $each.guid }; state = Read-WinhostLimits $each.found }
        }
    }
}

function Read-WinhostLimits {
    param($Partition)
    $volume = @(Get-Volume -Partition $Partition -ErrorAction Stop)[0]
    $limits = Get-PartitionSupportedSize -InputObject $Partition -ErrorAction Stop
    $state = @{
        smallest = [long]$limits.SizeMin
        largest = [long]$limits.SizeMax
        free = [long]$volume.SizeRemaining
        health = ConvertTo-WinhostWord "$($volume.HealthStatus)"
        holders = Read-WinhostList { Read-WinhostHolders $Partition }
        last_held_by = Read-WinhostValue { Read-WinhostLastHolder }
    }
    $state
}

function Read-WinhostHolders {
    param($Partition)
    $drive = "$(Read-WinhostDriveLetter $Partition):"
    foreach ($file in @(Get-CimInstance -ClassName Win32_PageFileUsage -ErrorAction Stop)) {
        if ("$($file.Name)".StartsWith($drive, [System.StringComparison]::OrdinalIgnoreCase)) {
            'page-file'
            break
        }
    }
    if ([int](Read-WinhostRegistry 'SYSTEM\CurrentControlSet\Control\Power' 'HibernateEnabled') -ne 0) {
        'hibernation-file'
    }
    if (@(Get-CimInstance -ClassName Win32_ShadowCopy -ErrorAction Stop).Count -gt 0) {
        'shadow-copies'
    }
}

function Read-WinhostLastHolder {
    # Event 259: its message is in the language of the host, but the file is a property of its own.
    $asked = @{ LogName = 'Application'; ProviderName = 'Microsoft-Windows-Defrag'; Id = 259 }
    try {
        $events = @(Get-WinEvent -FilterHashtable $asked -MaxEvents 1 -ErrorAction Stop)
    }
    catch {
        if ("$($_.FullyQualifiedErrorId)" -like 'NoMatchingEventsFound,*') {
            return $null
        }
        throw
    }
    foreach ($property in @($events[0].Properties)) {
        if ("$($property.Value)" -like '\*') {
            return "$($property.Value)"
        }
    }
}
