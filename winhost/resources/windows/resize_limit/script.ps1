# key {partition: guid}   state {smallest: bytes, largest: bytes, free: bytes, health: text, holders: [page-file | hibernation-file | shadow-copies | wsl-disks], last_held_by: text or null}
function Get-WinhostResizeLimit {
    Assert-WinhostAdministrator
    foreach ($each in @(Find-WinhostPartitions)) {
        if (-not [bool]$each.found.IsBoot) {
            continue
        }
        $volume = @(Get-Volume -Partition $each.found -ErrorAction Stop)[0]
        $limits = Read-WinhostValue { Read-WinhostSupportedSize $each.found }
        $known = $limits -isnot [hashtable]
        $state = @{
            smallest = $(if ($known) { [long]$limits.SizeMin } else { $limits })
            largest = $(if ($known) { [long]$limits.SizeMax } else { $limits })
            free = [long]$volume.SizeRemaining
            health = ConvertTo-WinhostKebab "$($volume.HealthStatus)"
            holders = Read-WinhostList { Read-WinhostShrinkBlockers $each.found }
            last_held_by = Read-WinhostValue { Read-WinhostLastShrinkBlocker }
        }
        @{ key = @{ partition = $each.guid }; state = $state }
    }
}

function Read-WinhostSupportedSize {
    param($Partition)
    # Windows analyses the whole volume for this, which can take long.
    $job = Get-PartitionSupportedSize -InputObject $Partition -AsJob -ErrorAction Stop
    try {
        $end = (Read-WinhostClock) + 120
        while (@('NotStarted', 'Running') -contains "$($job.State)") {
            if ((Read-WinhostClock) -ge $end) {
                Stop-Winhost 'Winhost.NotInTime' 'OperationTimeout' 'Windows did not say within 120 s how far the volume can shrink.'
            }
            Start-Sleep -Seconds 1 -ErrorAction Stop
        }
        @(Receive-Job -Job $job -ErrorAction Stop)[0]
    }
    finally {
        Invoke-WinhostBestEffort 'The job that asked for the size of the volume could not be removed' { Remove-Job -Job $job -Force -ErrorAction Stop }
    }
}

function Read-WinhostShrinkBlockers {
    param($Partition)
    $drive = "$(Read-WinhostDriveLetter $Partition):"
    foreach ($file in @(Get-CimInstance -ClassName Win32_PageFileUsage -ErrorAction Stop)) {
        if ("$($file.Name)".StartsWith($drive, [System.StringComparison]::OrdinalIgnoreCase)) {
            'page-file'
            break
        }
    }
    if (Read-WinhostHibernation) {
        'hibernation-file'
    }
    if (@(Get-CimInstance -ClassName Win32_ShadowCopy -ErrorAction Stop).Count -gt 0) {
        'shadow-copies'
    }
    # The VM of WSL 2 (and of Docker Desktop) keeps its disk images open. In older versions of WSL, its process cannot be
    # distinguished from those of other VMs.
    foreach ($process in @(Get-CimInstance -ClassName Win32_Process -ErrorAction Stop)) {
        if ("$($process.Name)" -match '\AvmmemWSL(\.exe)?\z') {
            'wsl-disks'
            break
        }
    }
}

function Read-WinhostLastShrinkBlocker {
    # Event 259: its message is localized, but the file is a separate property.
    $filter = @{ LogName = 'Application'; ProviderName = 'Microsoft-Windows-Defrag'; Id = 259 }
    $found = @(Read-WinhostOptional 'NoMatchingEventsFound,*' { Get-WinEvent -FilterHashtable $filter -MaxEvents 1 -ErrorAction Stop })
    foreach ($property in @($found | ForEach-Object -Process { $_.Properties })) {
        if ("$($property.Value)" -like '\*') {
            return "$($property.Value)"
        }
    }
}
