# The code of the scheduled task that changes an external switch. Join-WinhostSwitchScript builds its script.

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
    Unregister-WinhostStartTask 'winhost-switch'
}

function Invoke-WinhostSwitchChange {
    param($Record)
    # Returns why the change has to be undone, or nothing.
    try {
        if ($Record.begun) {
            Wait-WinhostSwitchReady $Record.adapter
            return 'The host restarted before anybody came back.'
        }
        $Record.begun = $true
        Save-WinhostSwitchRecord $Record
        Write-WinhostSwitchFile 'snapshot.json' (Read-WinhostSwitchAddresses (Find-WinhostSwitchInterface $Record (-not $Record.make)))
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
    # Windows may have just started, when its switches and adapters appear one after another.
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
    # Creates or removes the switch, and restores the former addresses.
    if ($Make) {
        Add-WinhostSwitch $Record
    }
    else {
        Remove-WinhostSwitch $Record
    }
    $snapshot = Read-WinhostSwitchFile 'snapshot.json'
    if ($null -ne $snapshot) {
        Restore-WinhostSwitchAddresses (Wait-WinhostSwitchInterface $Record $Make $snapshot.link) $snapshot
    }
}

function Add-WinhostSwitch {
    param($Record)
    foreach ($switch in @(Find-WinhostExternalSwitches)) {
        if ("$($switch.Id)" -eq $Record.switch) {
            # The switch was never removed.
            return
        }
    }
    $adapter = Find-WinhostAdapter $Record.adapter
    $switch = New-VMSwitch -Name $Record.name -NetAdapterName $adapter.Name -AllowManagementOS $true -ErrorAction Stop
    $Record.switch = "$($switch.Id)"
    Save-WinhostSwitchRecord $Record
    foreach ($port in @(Get-VMNetworkAdapter -ManagementOS -ErrorAction Stop)) {
        # The adapter's driver has tagged frames until now; with a switch, the switch must do it.
        if ("$($port.SwitchId)" -eq $Record.switch -and $adapter.VlanID -gt 0) {
            Set-VMNetworkAdapterVlan -VMNetworkAdapter $port -Access -VlanId $adapter.VlanID -ErrorAction Stop
        }
    }
}

function Remove-WinhostSwitch {
    param($Record)
    foreach ($switch in @(Find-WinhostExternalSwitches)) {
        # A switch that New-VMSwitch created although it failed has no id in the record.
        $half = $Record.make -and $switch.Name -ceq $Record.name -and @(Find-WinhostSwitchAdapters $switch) -contains $Record.adapter
        if ("$($switch.Id)" -eq $Record.switch -or $half) {
            # Without -Force it prompts regardless of -Confirm, and nobody could answer.
            Remove-VMSwitch -VMSwitch $switch -Force -Confirm:$false -ErrorAction Stop
        }
    }
}

function Find-WinhostSwitchInterface {
    param($Record, [bool]$Made)
    # Returns the interface with the addresses: that of the adapter, or the host's port on the switch.
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

function Wait-WinhostSwitchInterface {
    param($Record, [bool]$Made, [bool]$Link)
    # Waits for the interface, because a new one is not listed at once, and for its link if there was one before.
    $end = (Read-WinhostClock) + 60
    do {
        Start-Sleep -Seconds 1 -ErrorAction Stop
        $why = $null
        $up = $false
        try {
            $adapter = Find-WinhostAdapter (Find-WinhostSwitchInterface $Record $Made)
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
            # The zone is removed, because it is the number of this interface.
            $text = "$($address.IPAddress)".Split('%')[0]
            $families += $text.Contains(':')
            $snapshot.addresses += @{ address = $text; prefix = [int]$address.PrefixLength }
        }
    }
    foreach ($route in @(Get-NetRoute -ErrorAction Stop)) {
        # Routes from DHCP or routers are received again, and on-link routes follow from the addresses.
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
    # Restores missing addresses, routes and settings. Windows moves most of them by itself.
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
    param($Index, $Desired)
    # Windows treats an unknown network as public, where its firewall blocks WinRM. It detects a domain network by itself.
    if (@('Private', 'Public') -notcontains "$Desired") {
        return
    }
    $end = (Read-WinhostClock) + 30
    do {
        foreach ($network in @(Get-NetConnectionProfile -ErrorAction Stop)) {
            if ($network.InterfaceIndex -eq $Index) {
                if ("$($network.NetworkCategory)" -ne $Desired) {
                    Set-NetConnectionProfile -InterfaceIndex $Index -NetworkCategory $Desired -ErrorAction Stop
                }
                return
            }
        }
        Start-Sleep -Seconds 1 -ErrorAction Stop
    } while ((Read-WinhostClock) -lt $end)
}
