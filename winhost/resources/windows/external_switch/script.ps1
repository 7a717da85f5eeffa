# key {name: text}   state {adapter: guid or null, management_os: bool, vms: count, phase: none | pending | awaiting | settled | undone | failed, detail: text or null}; how {within: seconds that the host waits for whoever asked}
function Get-WinhostExternalSwitch {
    param($Key)
    Assert-WinhostHyperV
    $records = @(Read-WinhostOwnSwitchRecords)
    $names = @(foreach ($switch in @(Find-WinhostExternalSwitches)) { "$($switch.Name)" })
    $names += @(foreach ($record in $records) { $record.name })
    if ($null -ne $Key) {
        $names = @("$(Read-WinhostField $Key 'name')")
    }
    $seen = @()
    foreach ($name in $names) {
        if ($seen -notcontains $name) {
            $seen += $name
            @{ key = @{ name = $name }; state = New-WinhostSwitchState $name $records }
        }
    }
}

function Read-WinhostOwnSwitchRecords {
    # Records are read only from folders that others could not have created. Setting refuses other folders with an error.
    $data = Read-WinhostDataFolder
    if (Test-WinhostFolder "$data\switch") {
        Assert-WinhostPart 'Test-WinhostOwnFolder', 'Read-WinhostSwitchRecords'
        if ((Test-WinhostOwnFolder $data) -and (Test-WinhostOwnFolder "$data\switch")) {
            Read-WinhostSwitchRecords
        }
    }
}

function New-WinhostSwitchState {
    param([string]$Name, $Records)
    $state = @{ adapter = $null; management_os = $false; vms = 0; phase = 'none'; detail = $null }
    $record = $null
    if (@($Records).Count -gt 0) {
        Assert-WinhostPart 'Find-WinhostSwitchRecord', 'Read-WinhostSwitchPhase'
        $record = Find-WinhostSwitchRecord $Records $Name
    }
    foreach ($switch in @(Find-WinhostExternalSwitches)) {
        if (Test-WinhostText "$($switch.Name)" $Name 'OrdinalIgnoreCase') {
            foreach ($bound in @(Find-WinhostSwitchAdapters $switch)) {
                $state.adapter = $bound
            }
            $state.management_os = [bool]$switch.AllowManagementOS
            $state.vms = @(Find-WinhostSwitchUsers $switch).Count
            if ($null -ne $record -and "$($switch.Id)" -ne $record.switch) {
                # This is another switch of the same name.
                return $state
            }
            break
        }
    }
    if ($null -ne $record) {
        Read-WinhostSwitchPhase $record $state
    }
    $state
}

function Read-WinhostSwitchPhase {
    param($Record, $State)
    if ($Record.phase -ne 'settled' -or $null -ne $State.adapter) {
        $State.phase = $Record.phase
        $State.detail = $Record.detail
    }
    if (Test-WinhostSwitchInFlight $Record) {
        # Until the change is committed it may be undone.
        $State.adapter = $null
        if (-not $Record.make) {
            $State.adapter = $Record.adapter
        }
    }
}

function Set-WinhostExternalSwitch {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('adapter')
    $goal = New-WinhostSwitchRecord $Key $Desired $How
    # Checks the folder before any file in it is trusted.
    Initialize-WinhostDataFolder 'switch'
    $records = @(Read-WinhostSwitchRecords)
    Assert-WinhostSwitchNotUndone (Find-WinhostSwitchRecord $records $goal.name)
    $flying = @(foreach ($each in $records) { if (Test-WinhostSwitchInFlight $each) { $each } })
    $committed = $false
    if ($flying.Count -eq 0) {
        if ($goal.make) {
            Assert-WinhostAdapterAvailable $goal
        }
        else {
            Assert-WinhostOwnSwitch $goal (Find-WinhostSwitchRecord $records $goal.name)
        }
        Start-WinhostSwitchTask $goal
    }
    elseif ($flying[0].name -ne $goal.name -or $flying[0].make -ne $goal.make) {
        Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' "Another change is under way: of switch $($flying[0].name)."
    }
    elseif ($flying[0].phase -eq 'awaiting') {
        Write-WinhostSwitchFile 'commit.json' @{ name = $goal.name }
        $committed = $true
    }
    $ended = Wait-WinhostSwitch $goal.name $committed
    if (Test-WinhostSwitchInFlight $ended) {
        Stop-Winhost 'Winhost.ComeBack' 'OperationStopped' 'It stands, and is undone unless you come back: ask again in a new session.'
    }
    if (Test-WinhostSwitchUndone $ended) {
        # Not recorded as reported: if the change interrupted the connection, this error does not arrive.
        Stop-Winhost 'Winhost.SwitchUndone' 'OperationStopped' "$($ended.phase): $($ended.detail)"
    }
    Clear-WinhostSwitchFolder
}

# ---- the request and its checks

function New-WinhostSwitchRecord {
    param($Key, $Desired, $How)
    $name = "$(Read-WinhostField $Key 'name')"
    # The name becomes part of a WSL file that allows no other characters.
    if ($name -notmatch '^[A-Za-z0-9][A-Za-z0-9_-]{0,31}\z') {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'The name of a switch has 1 to 32 letters, digits, - and _.'
    }
    Assert-WinhostPattern $Desired 'adapter' $script:WinhostGuidForm 'the GUID of an interface'
    $seconds = Read-WinhostField $How 'within'
    if ($null -eq $seconds -or $seconds -lt 60) {
        $seconds = 300
    }
    $make = $null -ne $Desired.adapter
    $adapter = "$($Desired.adapter)"
    [pscustomobject]@{ name = $name; adapter = $adapter; make = $make; seconds = [int]$seconds; switch = ''; begun = $false; told = $false; phase = 'pending'; detail = $null }
}

function Assert-WinhostAdapterAvailable {
    param($Goal)
    $adapter = Find-WinhostAdapter $Goal.adapter
    if ($adapter.InterfaceOperationalStatus -ne 1) {
        Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' "$($adapter.Name) has no link."
    }
    foreach ($switch in @(Get-VMSwitch -ErrorAction Stop)) {
        if (Test-WinhostText "$($switch.Name)" $Goal.name 'OrdinalIgnoreCase') {
            Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' "There is a switch $($switch.Name) already."
        }
        if (@(Find-WinhostSwitchAdapters $switch) -contains $Goal.adapter) {
            Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' "Switch $($switch.Name) has this adapter."
        }
    }
}

function Assert-WinhostOwnSwitch {
    param($Goal, $Record)
    foreach ($switch in @(Find-WinhostExternalSwitches)) {
        if ($null -ne $Record -and "$($switch.Id)" -eq $Record.switch) {
            if (@(Find-WinhostSwitchUsers $switch).Count -gt 0) {
                Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' 'VMs are connected to it.'
            }
            $Goal.adapter = $Record.adapter
            $Goal.switch = $Record.switch
            return
        }
    }
    Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' 'winhost removes only switches that it made.'
}

function Assert-WinhostSwitchNotUndone {
    param($Record)
    # An undone change is reported once. A further request tries it again.
    if ((Test-WinhostSwitchUndone $Record) -and -not $Record.told) {
        $Record.told = $true
        Save-WinhostSwitchRecord $Record
        Stop-Winhost 'Winhost.SwitchUndone' 'OperationStopped' "$($Record.phase): $($Record.detail)"
    }
}

function Test-WinhostSwitchUndone {
    param($Record)
    $null -ne $Record -and @('undone', 'failed') -contains $Record.phase
}

function Wait-WinhostSwitch {
    param([string]$Name, [bool]$Committed)
    $end = (Read-WinhostClock) + 240
    do {
        Start-Sleep -Seconds 1 -ErrorAction Stop
        $record = Find-WinhostSwitchRecord @(Read-WinhostSwitchRecords) $Name
        $waiting = (Test-WinhostSwitchInFlight $record) -and ($Committed -or $record.phase -eq 'pending')
    } while ($waiting -and (Read-WinhostClock) -lt $end)
    if ($waiting) {
        Stop-WinhostSwitchTask $record
    }
    $record
}

function Clear-WinhostSwitchFolder {
    # After the commit the files for undoing are not needed, and without a switch of winhost no records are needed.
    $folder = Read-WinhostSwitchFolder
    if (@(Read-WinhostSwitchRecords).Count -eq 0) {
        Remove-WinhostFolder $folder
        return
    }
    foreach ($name in @('commit.json', 'snapshot.json', 'switch.ps1')) {
        Remove-WinhostFile "$folder\$name"
    }
}

function Stop-WinhostSwitchTask {
    param($Record)
    if (-not $Record.begun) {
        # A policy may keep the task from running its script. It must not start later unexpectedly.
        Unregister-WinhostStartTask 'winhost-switch'
        $Record.phase = 'undone'
        $Record.told = $true
        $Record.detail = 'The scheduled task did not begin.'
        Save-WinhostSwitchRecord $Record
    }
    Stop-Winhost 'Winhost.SwitchSilent' 'OperationTimeout' 'The scheduled task does not come to an end.'
}

# ---- the task

function Start-WinhostSwitchTask {
    param($Goal)
    $folder = Read-WinhostSwitchFolder
    Unregister-WinhostStartTask 'winhost-switch'
    Remove-WinhostFile "$folder\commit.json"
    Remove-WinhostFile "$folder\snapshot.json"
    Write-WinhostFile "$folder\switch.ps1" ([System.Text.Encoding]::ASCII.GetBytes((Join-WinhostSwitchScript)))
    Save-WinhostSwitchRecord $Goal
    # The task also runs at startup, so that a host that restarts meanwhile does not remain without its network.
    $arguments = "-NoLogo -NoProfile -NonInteractive -ExecutionPolicy Bypass -File `"$folder\switch.ps1`""
    Start-ScheduledTask -InputObject (Register-WinhostStartTask 'winhost-switch' $arguments) -ErrorAction Stop
}

function Join-WinhostSwitchScript {
    # Returns constant text: the functions of this list as they were sent, and a call of the last one.
    $names = @(
        'Stop-Winhost', 'Invoke-WinhostBestEffort', 'Open-WinhostRegistry', 'Read-WinhostRegistry', 'Read-WinhostProgramDataFolder', 'Read-WinhostDataFolder'
        'Open-WinhostLocalMachine', 'Find-WinhostScheduledTasks', 'Read-WinhostAttributes'
        'Read-WinhostJson', 'Read-WinhostFile', 'Read-WinhostBytes', 'Wait-WinhostReplacement', 'Assert-WinhostNoLink', 'Test-WinhostLink'
        'Test-WinhostAttribute'
        'Split-WinhostPath', 'Write-WinhostFile', 'Move-WinhostReplacement', 'Read-WinhostClock', 'ConvertTo-WinhostGuid', 'Find-WinhostSwitchAdapters'
        'Find-WinhostExternalSwitches', 'Find-WinhostAdapter', 'Read-WinhostSwitchFile', 'Write-WinhostSwitchFile'
        'Read-WinhostSwitchRecords', 'Save-WinhostSwitchRecord', 'Test-WinhostSwitchInFlight'
        'Unregister-WinhostStartTask', 'Find-WinhostSwitchInterface', 'Wait-WinhostSwitchInterface', 'Read-WinhostSwitchAddresses'
        'Wait-WinhostSwitchReady', 'Read-WinhostSwitchFolder'
        'Move-WinhostSwitch', 'Add-WinhostSwitch', 'Remove-WinhostSwitch', 'Restore-WinhostSwitchAddresses'
        'Restore-WinhostSwitchProfile', 'Wait-WinhostSwitchCommit', 'Invoke-WinhostSwitchChange', 'Invoke-WinhostSwitchTask'
    )
    # The same first lines as those of the agent, for the same reasons.
    $lines = @('Remove-TypeData -TypeName System.Array -ErrorAction Ignore', 'Set-StrictMode -Version 3.0', '$ErrorActionPreference = ''Stop''', '$ProgressPreference = ''SilentlyContinue''')
    foreach ($function in @(Get-ChildItem -Path 'Function:\' -ErrorAction Stop)) {
        if ($names -ccontains $function.Name) {
            $lines += "function $($function.Name) {$($function.Definition)}"
        }
    }
    ($lines + 'Invoke-WinhostSwitchTask') -join "`r`n"
}
