# key {name: text}   state {adapter: guid or null, management_os: bool, vms: count, phase: none | pending | awaiting | settled | undone | failed, detail: text or null}; how {within: seconds that the host waits for whoever asked}
function Get-WinhostExternalSwitch {
    param($Key)
    Assert-WinhostHyperV
    $records = @(Read-WinhostSwitchRecords)
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

function New-WinhostSwitchState {
    param([string]$Name, $Records)
    $state = @{ adapter = $null; management_os = $false; vms = 0; phase = 'none'; detail = $null }
    $record = Find-WinhostSwitchRecord $Records $Name
    foreach ($switch in @(Find-WinhostExternalSwitches)) {
        if (Test-WinhostText "$($switch.Name)" $Name 'OrdinalIgnoreCase') {
            foreach ($bound in @(Find-WinhostBound $switch)) {
                $state.adapter = $bound
            }
            $state.management_os = [bool]$switch.AllowManagementOS
            $state.vms = @(Find-WinhostSwitchUsers $switch).Count
            if ($null -ne $record -and "$($switch.Id)" -ne $record.switch) {
                # Somebody else's, of the same name.
                return $state
            }
            break
        }
    }
    if ($null -ne $record -and ($record.phase -ne 'settled' -or $null -ne $state.adapter)) {
        $state.phase = $record.phase
        $state.detail = $record.detail
    }
    if (Test-WinhostSwitchInFlight $record) {
        # What is not settled may go back to how it was.
        $state.adapter = $null
        if (-not $record.make) {
            $state.adapter = $record.adapter
        }
    }
    $state
}

function Set-WinhostExternalSwitch {
    param($Key, $Want, $How)
    Assert-WinhostWant $Want @('adapter')
    $wish = New-WinhostSwitchRecord $Key $Want $How
    # Before anything there is believed.
    Initialize-WinhostFolder "$(Read-WinhostProgramData)\winhost" ''
    Initialize-WinhostFolder "$(Read-WinhostProgramData)\winhost\switch" ''
    $records = @(Read-WinhostSwitchRecords)
    Stop-WinhostSwitchUndone (Find-WinhostSwitchRecord $records $wish.name)
    $flying = @(foreach ($each in $records) { if (Test-WinhostSwitchInFlight $each) { $each } })
    $committed = $false
    if ($flying.Count -eq 0) {
        if ($wish.make) {
            Assert-WinhostSwitchFree $wish
        }
        else {
            Assert-WinhostSwitchOurs $wish (Find-WinhostSwitchRecord $records $wish.name)
        }
        Start-WinhostSwitchTask $wish
    }
    elseif ($flying[0].name -ne $wish.name -or $flying[0].make -ne $wish.make) {
        Stop-Winhost 'Winhost.WrongPlace' 'InvalidOperation' "Another change is under way: of switch $($flying[0].name)."
    }
    elseif ($flying[0].phase -eq 'awaiting') {
        Write-WinhostSwitchFile 'commit.json' @{ name = $wish.name }
        $committed = $true
    }
    $ended = Wait-WinhostSwitch $wish.name $committed
    if (Test-WinhostSwitchInFlight $ended) {
        Stop-Winhost 'Winhost.ComeBack' 'OperationStopped' 'It stands, and is undone unless you come back: ask again in a new session.'
    }
    if (Test-WinhostSwitchUndone $ended) {
        # Not counted as told: if this cut the wire, nobody hears it.
        Stop-Winhost 'Winhost.SwitchUndone' 'OperationStopped' "$($ended.phase): $($ended.detail)"
    }
    Clear-WinhostSwitchFolder
}

# ---- what is asked, and whether it may be

function New-WinhostSwitchRecord {
    param($Key, $Want, $How)
    $name = "$(Read-WinhostField $Key 'name')"
    # It becomes part of a file of WSL's that knows no other letters.
    if ($name -notmatch '^[A-Za-z0-9][A-Za-z0-9_-]{0,31}\z') {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'The name of a switch has 1 to 32 letters, digits, - and _.'
    }
    if ($null -ne $Want.adapter -and "$($Want.adapter)" -cnotmatch '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\z') {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'The adapter is the GUID of an interface.'
    }
    $seconds = Read-WinhostField $How 'within'
    if ($null -eq $seconds -or $seconds -lt 60) {
        $seconds = 300
    }
    $make = $null -ne $Want.adapter
    $adapter = "$($Want.adapter)"
    [pscustomobject]@{ name = $name; adapter = $adapter; make = $make; seconds = [int]$seconds; switch = ''; begun = $false; told = $false; phase = 'pending'; detail = $null }
}

function Assert-WinhostSwitchFree {
    param($Wish)
    $adapter = Find-WinhostAdapter $Wish.adapter
    if ($adapter.InterfaceOperationalStatus -ne 1) {
        Stop-Winhost 'Winhost.WrongPlace' 'InvalidOperation' "$($adapter.Name) has no link."
    }
    foreach ($switch in @(Get-VMSwitch -ErrorAction Stop)) {
        if (Test-WinhostText "$($switch.Name)" $Wish.name 'OrdinalIgnoreCase') {
            Stop-Winhost 'Winhost.WrongPlace' 'InvalidOperation' "There is a switch $($switch.Name) already."
        }
        if (@(Find-WinhostBound $switch) -contains $Wish.adapter) {
            Stop-Winhost 'Winhost.WrongPlace' 'InvalidOperation' "Switch $($switch.Name) has this adapter."
        }
    }
}

function Assert-WinhostSwitchOurs {
    param($Wish, $Record)
    foreach ($switch in @(Find-WinhostExternalSwitches)) {
        if ($null -ne $Record -and "$($switch.Id)" -eq $Record.switch) {
            if (@(Find-WinhostSwitchUsers $switch).Count -gt 0) {
                Stop-Winhost 'Winhost.WrongPlace' 'InvalidOperation' 'VMs are connected to it.'
            }
            $Wish.adapter = $Record.adapter
            $Wish.switch = $Record.switch
            return
        }
    }
    Stop-Winhost 'Winhost.WrongPlace' 'InvalidOperation' 'winhost removes only switches that it made.'
}

function Stop-WinhostSwitchUndone {
    param($Record)
    # Told once to whoever asks for the same: who asks again after that wants it tried again.
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
        Stop-WinhostSwitchSilent $record
    }
    $record
}

function Clear-WinhostSwitchFolder {
    # What is settled needs no way back from the middle of it; where winhost has no switch, nothing has to be known.
    $folder = "$(Read-WinhostProgramData)\winhost\switch"
    if (@(Read-WinhostSwitchRecords).Count -eq 0) {
        Remove-WinhostFolder $folder
        return
    }
    foreach ($name in @('commit.json', 'snapshot.json', 'switch.ps1')) {
        Remove-WinhostFile "$folder\$name"
    }
}

function Stop-WinhostSwitchSilent {
    param($Record)
    if (-not $Record.begun) {
        # A policy may forbid the task its script. Later it must not begin by surprise.
        Unregister-WinhostSwitchTask
        $Record.phase = 'undone'
        $Record.told = $true
        $Record.detail = 'The scheduled task did not begin.'
        Save-WinhostSwitchRecord $Record
    }
    Stop-Winhost 'Winhost.SwitchSilent' 'OperationTimeout' 'The scheduled task does not come to an end.'
}

# ---- the task

function Start-WinhostSwitchTask {
    param($Wish)
    $folder = "$(Read-WinhostProgramData)\winhost\switch"
    Unregister-WinhostSwitchTask
    Remove-WinhostFile "$folder\commit.json"
    Remove-WinhostFile "$folder\snapshot.json"
    Write-WinhostFile "$folder\switch.ps1" ([System.Text.Encoding]::ASCII.GetBytes((Join-WinhostSwitchScript))) ''
    Save-WinhostSwitchRecord $Wish
    $program = "$([System.Environment]::SystemDirectory)\WindowsPowerShell\v1.0\powershell.exe"
    $words = "-NoLogo -NoProfile -NonInteractive -ExecutionPolicy Bypass -File `"$folder\switch.ps1`""
    $action = New-ScheduledTaskAction -Execute $program -Argument $words -ErrorAction Stop
    # At startup, too: a host that restarts meanwhile must not stay without its network.
    $trigger = New-ScheduledTaskTrigger -AtStartup -ErrorAction Stop
    $principal = New-ScheduledTaskPrincipal -UserId 'S-1-5-18' -LogonType 'ServiceAccount' -RunLevel 'Highest' -ErrorAction Stop
    $settings = New-ScheduledTaskSettingsSet -AllowStartIfOnBatteries -DontStopIfGoingOnBatteries -ErrorAction Stop
    $task = Register-ScheduledTask -TaskName 'winhost-switch' -Action $action -Trigger $trigger -Principal $principal -Settings $settings -ErrorAction Stop
    Start-ScheduledTask -InputObject $task -ErrorAction Stop
}

function Unregister-WinhostSwitchTask {
    foreach ($task in @(Get-ScheduledTask -ErrorAction Stop)) {
        if ($task.TaskName -ceq 'winhost-switch' -and $task.TaskPath -ceq '\') {
            Unregister-ScheduledTask -InputObject $task -Confirm:$false -ErrorAction Stop
        }
    }
}

function Join-WinhostSwitchScript {
    # Constant text: our own functions as they were sent, and the call of the last.
    $names = @(
        'Stop-Winhost', 'Open-WinhostRegistry', 'Read-WinhostRegistry', 'Read-WinhostProgramData'
        'Read-WinhostFile', 'Write-WinhostFile', 'Read-WinhostClock', 'ConvertTo-WinhostGuid', 'Find-WinhostBound'
        'Find-WinhostExternalSwitches', 'Find-WinhostAdapter', 'Read-WinhostSwitchFile', 'Write-WinhostSwitchFile'
        'Read-WinhostSwitchRecords', 'Save-WinhostSwitchRecord', 'Test-WinhostSwitchInFlight'
        'Unregister-WinhostSwitchTask', 'Find-WinhostSwitchEnd', 'Wait-WinhostSwitchEnd', 'Read-WinhostSwitchAddresses'
        'Wait-WinhostSwitchReady'
        'Move-WinhostSwitch', 'Add-WinhostSwitch', 'Remove-WinhostSwitch', 'Restore-WinhostSwitchAddresses'
        'Restore-WinhostSwitchProfile', 'Wait-WinhostSwitchCommit', 'Invoke-WinhostSwitchChange', 'Invoke-WinhostSwitchTask'
    )
    # As the agent begins, and for the same reasons.
    $lines = @('Remove-TypeData -TypeName System.Array -ErrorAction Ignore', 'Set-StrictMode -Version 3.0', '$ErrorActionPreference = ''Stop''', '$ProgressPreference = ''SilentlyContinue''')
    foreach ($function in @(Get-ChildItem -Path 'Function:\' -ErrorAction Stop)) {
        if ($names -ccontains $function.Name) {
            $lines += "function $($function.Name) {$($function.Definition)}"
        }
    }
    ($lines + 'Invoke-WinhostSwitchTask') -join "`r`n"
}

# ---- what is known of switches, of which the task writes while we read

function Read-WinhostSwitchFile {
    param([string]$Name)
    for ($try = 1; $true; $try++) {
        try {
            $bytes = Read-WinhostFile "$(Read-WinhostProgramData)\winhost\switch\$Name"
            if ($null -eq $bytes) {
                return $null
            }
            return ConvertFrom-Json -InputObject ([System.Text.Encoding]::UTF8.GetString($bytes)) -ErrorAction Stop
        }
        catch [System.IO.IOException] {
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
            return Write-WinhostFile "$(Read-WinhostProgramData)\winhost\switch\$Name" ([System.Text.Encoding]::UTF8.GetBytes($json)) ''
        }
        catch [System.IO.IOException] {
            if ($try -ge 10) {
                throw
            }
            Start-Sleep -Seconds 1 -ErrorAction Stop
        }
    }
}

function Read-WinhostSwitchRecords {
    $file = Read-WinhostSwitchFile 'switches.json'
    if ($null -ne $file) {
        @($file.records)
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
    # The record last: who waits for it may take away the folder then.
    $log = Read-WinhostSwitchFile 'log.json'
    $lines = @()
    if ($null -ne $log) {
        $lines = @($log.lines)
    }
    $lines += "$([System.DateTime]::UtcNow.ToString('s')) $($Record.name): $($Record.phase) $($Record.detail)"
    Write-WinhostSwitchFile 'log.json' @{ lines = $lines }
    $others = @(foreach ($each in @(Read-WinhostSwitchRecords)) { if ($each.name -ne $Record.name) { $each } })
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

# ---- what the task does

function Invoke-WinhostSwitchTask {
    foreach ($record in @(Read-WinhostSwitchRecords)) {
        if (-not (Test-WinhostSwitchInFlight $record)) {
            continue
        }
        $why = Invoke-WinhostSwitchChange $record
        $record.phase = 'settled'
        if ($null -ne $why) {
            $record.phase = 'undone'
            try {
                Move-WinhostSwitch $record (-not $record.make)
            }
            catch {
                $record.phase = 'failed'
                $why = "$why $($_.Exception.Message)"
            }
        }
        $record.detail = $why
        Save-WinhostSwitchRecord $record
    }
    Unregister-WinhostSwitchTask
}

function Invoke-WinhostSwitchChange {
    param($Record)
    # Nothing, or why it has to be undone.
    try {
        if ($Record.begun) {
            Wait-WinhostSwitchReady $Record.adapter
            return 'The host restarted before anybody came back.'
        }
        $Record.begun = $true
        Save-WinhostSwitchRecord $Record
        Write-WinhostSwitchFile 'snapshot.json' (Read-WinhostSwitchAddresses (Find-WinhostSwitchEnd $Record (-not $Record.make)))
        Move-WinhostSwitch $Record $Record.make
        $Record.phase = 'awaiting'
        Save-WinhostSwitchRecord $Record
        if (Wait-WinhostSwitchCommit $Record.seconds) {
            return $null
        }
        "Nobody came back within $($Record.seconds) s."
    }
    catch {
        "$($_.Exception.Message)"
    }
}

function Wait-WinhostSwitchReady {
    param([string]$Adapter)
    # Windows may have only just started, and its switches and adapters come one after another.
    $end = (Read-WinhostClock) + 300
    do {
        Start-Sleep -Seconds 1 -ErrorAction Stop
        try {
            $null = @(Find-WinhostExternalSwitches)
            $null = Find-WinhostAdapter $Adapter
            $ready = $true
        }
        catch {
            $ready = $false
        }
    } while (-not $ready -and (Read-WinhostClock) -lt $end)
}

function Wait-WinhostSwitchCommit {
    param([int]$Seconds)
    $end = (Read-WinhostClock) + $Seconds
    do {
        Start-Sleep -Seconds 1 -ErrorAction Stop
        if ($null -ne (Read-WinhostSwitchFile 'commit.json')) {
            return $true
        }
    } while ((Read-WinhostClock) -lt $end)
    $false
}

function Move-WinhostSwitch {
    param($Record, [bool]$Make)
    # With the switch or without it, and in either case with the addresses of before.
    if ($Make) {
        Add-WinhostSwitch $Record
    }
    else {
        Remove-WinhostSwitch $Record
    }
    $snapshot = Read-WinhostSwitchFile 'snapshot.json'
    if ($null -ne $snapshot) {
        Restore-WinhostSwitchAddresses (Wait-WinhostSwitchEnd $Record $Make $snapshot.link) $snapshot
    }
}

function Add-WinhostSwitch {
    param($Record)
    foreach ($switch in @(Find-WinhostExternalSwitches)) {
        if ("$($switch.Id)" -eq $Record.switch) {
            # Its removal never came to that.
            return
        }
    }
    $adapter = Find-WinhostAdapter $Record.adapter
    $switch = New-VMSwitch -Name $Record.name -NetAdapterName $adapter.Name -AllowManagementOS $true -ErrorAction Stop
    $Record.switch = "$($switch.Id)"
    Save-WinhostSwitchRecord $Record
    foreach ($port in @(Get-VMNetworkAdapter -ManagementOS -ErrorAction Stop)) {
        # Tagged by the adapter's driver until now; under a switch that is the switch's work.
        if ("$($port.SwitchId)" -eq $Record.switch -and $adapter.VlanID -gt 0) {
            Set-VMNetworkAdapterVlan -VMNetworkAdapter $port -Access -VlanId $adapter.VlanID -ErrorAction Stop
        }
    }
}

function Remove-WinhostSwitch {
    param($Record)
    foreach ($switch in @(Find-WinhostExternalSwitches)) {
        # One that came to be while New-VMSwitch failed has no record of its id.
        $half = $Record.make -and $switch.Name -ceq $Record.name -and @(Find-WinhostBound $switch) -contains $Record.adapter
        if ("$($switch.Id)" -eq $Record.switch -or $half) {
            # It asks back whatever -Confirm says; nobody is here to answer.
            Remove-VMSwitch -VMSwitch $switch -Force -Confirm:$false -ErrorAction Stop
        }
    }
}

function Find-WinhostSwitchEnd {
    param($Record, [bool]$Made)
    # The interface that carries the addresses: the adapter's own, or the host's port on the switch.
    if (-not $Made) {
        return $Record.adapter
    }
    foreach ($port in @(Get-VMNetworkAdapter -ManagementOS -ErrorAction Stop)) {
        if ("$($port.SwitchId)" -eq $Record.switch) {
            return ConvertTo-WinhostGuid $port.DeviceId
        }
    }
    Stop-Winhost 'Winhost.NotFound' 'ObjectNotFound' "The host has no port on switch $($Record.name)."
}

function Wait-WinhostSwitchEnd {
    param($Record, [bool]$Made, [bool]$Link)
    # A cable that was out before is no reason to go back. An interface that has just been made is not listed at once.
    $end = (Read-WinhostClock) + 60
    do {
        Start-Sleep -Seconds 1 -ErrorAction Stop
        $why = $null
        $up = $false
        try {
            $adapter = Find-WinhostAdapter (Find-WinhostSwitchEnd $Record $Made)
            $up = $adapter.InterfaceOperationalStatus -eq 1 -or -not $Link
        }
        catch {
            $why = $_
        }
    } while (-not $up -and (Read-WinhostClock) -lt $end)
    if ($null -ne $why) {
        throw $why
    }
    if (-not $up) {
        Stop-Winhost 'Winhost.NoLink' 'OperationTimeout' "$($adapter.Name) has no link."
    }
    $adapter
}

function Read-WinhostSwitchAddresses {
    param([string]$Guid)
    $adapter = Find-WinhostAdapter $Guid
    $index = $adapter.InterfaceIndex
    $servers = @()
    foreach ($family in @('Tcpip', 'Tcpip6')) {
        $names = "$(Read-WinhostRegistry "SYSTEM\CurrentControlSet\Services\$family\Parameters\Interfaces\{$Guid}" 'NameServer')"
        $servers += @(foreach ($each in ($names -split '[, ]')) { if ($each.Length -gt 0) { $each } })
    }
    $link = $adapter.InterfaceOperationalStatus -eq 1
    $snapshot = @{ link = $link; addresses = @(); routes = @(); dns = $servers; metric = $null; network = $null }
    $families = @()
    foreach ($address in @(Get-NetIPAddress -ErrorAction Stop)) {
        if ($address.InterfaceIndex -eq $index -and "$($address.PrefixOrigin)" -eq 'Manual') {
            # Without its zone, which is the number of this very interface.
            $text = "$($address.IPAddress)".Split('%')[0]
            $families += $text.Contains(':')
            $snapshot.addresses += @{ address = $text; prefix = [int]$address.PrefixLength }
        }
    }
    foreach ($route in @(Get-NetRoute -ErrorAction Stop)) {
        # What DHCP or a router gave they give again; what is on the link follows from the addresses.
        $led = @('0.0.0.0', '::') -notcontains "$($route.NextHop)" -and $families -contains "$($route.DestinationPrefix)".Contains(':')
        if ($route.InterfaceIndex -eq $index -and $led) {
            $snapshot.routes += @{ to = "$($route.DestinationPrefix)"; by = "$($route.NextHop)"; metric = [int]$route.RouteMetric }
        }
    }
    foreach ($interface in @(Get-NetIPInterface -AddressFamily IPv4 -ErrorAction Stop)) {
        if ($interface.InterfaceIndex -eq $index -and "$($interface.AutomaticMetric)" -eq 'Disabled') {
            $snapshot.metric = [int]$interface.InterfaceMetric
        }
    }
    foreach ($network in @(Get-NetConnectionProfile -ErrorAction Stop)) {
        if ($network.InterfaceIndex -eq $index) {
            $snapshot.network = "$($network.NetworkCategory)"
        }
    }
    $snapshot
}

function Restore-WinhostSwitchAddresses {
    param($Adapter, $Snapshot)
    # What is missing; most of it Windows moves by itself.
    $index = $Adapter.InterfaceIndex
    $now = Read-WinhostSwitchAddresses (ConvertTo-WinhostGuid $Adapter.InterfaceGuid)
    $there = @(foreach ($each in $now.addresses) { $each.address })
    foreach ($each in @($Snapshot.addresses)) {
        if ($there -notcontains $each.address) {
            $null = New-NetIPAddress -InterfaceIndex $index -IPAddress $each.address -PrefixLength $each.prefix -ErrorAction Stop
        }
    }
    $there = @(foreach ($each in $now.routes) { "$($each.to) $($each.by)" })
    foreach ($each in @($Snapshot.routes)) {
        if ($there -notcontains "$($each.to) $($each.by)") {
            $null = New-NetRoute -InterfaceIndex $index -DestinationPrefix $each.to -NextHop $each.by -RouteMetric $each.metric -ErrorAction Stop
        }
    }
    $names = @($Snapshot.dns)
    if ($names.Count -gt 0 -and "$names" -ne "$($now.dns)") {
        Set-DnsClientServerAddress -InterfaceIndex $index -ServerAddresses $names -ErrorAction Stop
    }
    if ($null -ne $Snapshot.metric -and $Snapshot.metric -ne $now.metric) {
        Set-NetIPInterface -InterfaceIndex $index -AddressFamily IPv4 -InterfaceMetric $Snapshot.metric -ErrorAction Stop
    }
    Restore-WinhostSwitchProfile $index $Snapshot.network
}

function Restore-WinhostSwitchProfile {
    param($Index, $Wanted)
    # A network that Windows takes for a new one is public, and its firewall then refuses WinRM. A domain it knows itself.
    if (@('Private', 'Public') -notcontains "$Wanted") {
        return
    }
    $end = (Read-WinhostClock) + 30
    do {
        foreach ($network in @(Get-NetConnectionProfile -ErrorAction Stop)) {
            if ($network.InterfaceIndex -eq $Index) {
                if ("$($network.NetworkCategory)" -ne $Wanted) {
                    Set-NetConnectionProfile -InterfaceIndex $Index -NetworkCategory $Wanted -ErrorAction Stop
                }
                return
            }
        }
        Start-Sleep -Seconds 1 -ErrorAction Stop
    } while ((Read-WinhostClock) -lt $end)
}
