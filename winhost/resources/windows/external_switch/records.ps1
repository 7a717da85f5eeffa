# Records of winhost's external switches, and the switches of the host. The task may write these files concurrently.

function Read-WinhostSwitchFolder {
    "$(Read-WinhostDataFolder)\switch"
}

function Read-WinhostSwitchFile {
    param([string]$Name)
    # A file that the task is just replacing is locked, or access to it is denied, for a moment.
    for ($try = 1; $true; $try++) {
        try {
            return Read-WinhostJson "$(Read-WinhostSwitchFolder)\$Name"
        }
        catch [System.IO.IOException], [System.UnauthorizedAccessException] {
            if ($try -ge 10) {
                throw
            }
            Start-Sleep -Seconds 1 -ErrorAction Stop
        }
    }
}

function Write-WinhostSwitchFile {
    param([string]$Name, $Content)
    $json = ConvertTo-Json -InputObject $Content -Depth 10 -Compress -ErrorAction Stop
    for ($try = 1; $true; $try++) {
        try {
            return Write-WinhostFile "$(Read-WinhostSwitchFolder)\$Name" ([System.Text.Encoding]::UTF8.GetBytes($json))
        }
        catch [System.IO.IOException], [System.UnauthorizedAccessException] {
            if ($try -ge 10) {
                throw
            }
            Start-Sleep -Seconds 1 -ErrorAction Stop
        }
    }
}

function Read-WinhostSwitchRecords {
    # The log is written first and removed last. If there is a log but no records, they are just being replaced. Returning
    # no records then would let the caller remove the folder.
    for ($try = 1; $true; $try++) {
        $file = Read-WinhostSwitchFile 'switches.json'
        if ($null -ne $file) {
            return @($file.records)
        }
        if ($try -ge 5 -or $null -eq (Read-WinhostSwitchFile 'log.json')) {
            return
        }
        Start-Sleep -Seconds 1 -ErrorAction Stop
    }
}

function Find-WinhostSwitchRecord {
    param($Records, [string]$Name)
    foreach ($record in @($Records)) {
        if (Test-WinhostText $record.name $Name 'OrdinalIgnoreCase') {
            return $record
        }
    }
}

function Save-WinhostSwitchRecord {
    param($Record)
    $others = @(foreach ($each in @(Read-WinhostSwitchRecords)) { if ($each.name -ne $Record.name) { $each } })
    # The record is written last: the process that waits for it may then remove the folder.
    $log = Read-WinhostSwitchFile 'log.json'
    $lines = @()
    if ($null -ne $log) {
        $lines = @($log.lines)
    }
    $lines += "$([System.DateTime]::UtcNow.ToString('s')) $($Record.name): $($Record.phase) $($Record.detail)"
    Write-WinhostSwitchFile 'log.json' @{ lines = $lines }
    if ($Record.phase -ne 'settled' -or $Record.make) {
        $others += $Record
    }
    Write-WinhostSwitchFile 'switches.json' @{ records = $others }
}

function Test-WinhostSwitchInFlight {
    param($Record)
    $null -ne $Record -and @('pending', 'awaiting') -contains $Record.phase
}

function Find-WinhostExternalSwitches {
    foreach ($switch in @(Get-VMSwitch -ErrorAction Stop)) {
        if ("$($switch.SwitchType)" -eq 'External') {
            $switch
        }
    }
}

function Find-WinhostSwitchUsers {
    param($Switch)
    foreach ($adapter in @(Get-VMNetworkAdapter -All -ErrorAction Stop)) {
        if (-not $adapter.IsManagementOs -and "$($adapter.SwitchId)" -eq "$($Switch.Id)") {
            $adapter
        }
    }
}

function Find-WinhostAdapter {
    param([string]$Guid)
    foreach ($adapter in @(Get-NetAdapter -ErrorAction Stop)) {
        if ((ConvertTo-WinhostGuid $adapter.InterfaceGuid) -eq $Guid) {
            return $adapter
        }
    }
    Stop-Winhost 'Winhost.NotFound' 'ObjectNotFound' "There is no network adapter $Guid."
}
