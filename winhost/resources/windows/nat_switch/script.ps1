# key {name: text}   state {made: bool or null, network: IPv4 network or null, address: IPv4 address or null, switch: guid or null, vms: int}; set: made, network
function Get-WinhostNatSwitch {
    param($Key)
    # Fails for users who cannot see VMs, even if there is no NAT.
    $null = @(Find-WinhostVms $null)
    $nats = @(Get-NetNat -ErrorAction Stop)
    if ($null -ne $Key -or $nats.Count -gt 0 -or (Test-WinhostRecords)) {
        Assert-WinhostPart 'Read-WinhostNats'
        Read-WinhostNats $Key $nats
    }
}

function Read-WinhostNats {
    param($Key, $Nats)
    foreach ($entry in @(Find-WinhostRecords 'nat' $Key)) {
        $state = New-WinhostNatState
        $state.made = $null
        foreach ($nat in $Nats) {
            if (Test-WinhostText "$($nat.Name)" $entry.name 'OrdinalIgnoreCase') {
                Read-WinhostNat $nat $state
            }
        }
        $state.switch = Read-WinhostNatSwitch $entry.record
        if ($entry.record.complete -and $null -ne $state.switch -and $null -ne $state.address -and "$($state.network)" -ceq $entry.record.network) {
            $state.made = $true
        }
        $state.vms = Measure-WinhostSwitchUsers $state.switch
        @{ key = @{ name = $entry.name }; state = $state }
    }
    foreach ($nat in $Nats) {
        # Returns the NATs of others as well. That of Docker has no network here.
        if ($null -eq (Find-WinhostRecord 'nat' "$($nat.Name)")) {
            $state = New-WinhostNatState
            Read-WinhostNat $nat $state
            @{ key = @{ name = "$($nat.Name)" }; state = $state }
        }
    }
    if ($null -ne $Key) {
        @{ key = @{ name = "$(Read-WinhostField $Key 'name')" }; state = New-WinhostNatState }
    }
}

function New-WinhostNatState {
    $state = @{ made = $false; network = $null; address = $null; switch = $null; vms = 0 }
    $state
}

function Read-WinhostNat {
    param($Nat, $State)
    $network = "$($Nat.InternalIPInterfaceAddressPrefix)"
    if (-not (Test-WinhostNetworks @($network))) {
        return
    }
    $State.network = $network
    foreach ($address in @(Get-NetIPAddress -ErrorAction Stop)) {
        if (Test-WinhostInNetwork "$($address.IPAddress)" $network) {
            $State.address = "$($address.IPAddress)"
            $State.switch = Find-WinhostInterfaceSwitch $address.InterfaceIndex
        }
    }
    $State.vms = Measure-WinhostSwitchUsers $State.switch
}

function Measure-WinhostSwitchUsers {
    param($Switch)
    if ($null -eq $Switch) {
        return 0
    }
    @(Find-WinhostSwitchUsers @{ Id = $Switch }).Count
}

function Test-WinhostInNetwork {
    param([string]$Address, [string]$Network)
    $base, $length = $Network.Split('/')
    $found = $null
    if (-not [System.Net.IPAddress]::TryParse($Address, [ref]$found) -or "$($found.AddressFamily)" -cne 'InterNetwork') {
        return $false
    }
    $bits = ConvertTo-WinhostBits ([System.Net.IPAddress]::Parse($base)).GetAddressBytes()
    $bits.Substring(0, [int]$length) -ceq (ConvertTo-WinhostBits $found.GetAddressBytes()).Substring(0, [int]$length)
}

function Find-WinhostInterfaceSwitch {
    param($Index)
    # Returns the switch on which this interface is the host's own port.
    foreach ($adapter in @(Get-NetAdapter -ErrorAction Stop)) {
        if ($adapter.InterfaceIndex -eq $Index) {
            foreach ($port in @(Get-VMNetworkAdapter -ManagementOS -ErrorAction Stop)) {
                if ((ConvertTo-WinhostGuid $port.DeviceId) -eq (ConvertTo-WinhostGuid $adapter.InterfaceGuid)) {
                    return "$($port.SwitchId)"
                }
            }
        }
    }
}

function Read-WinhostNatSwitch {
    param($Record)
    foreach ($switch in @(Get-VMSwitch -ErrorAction Stop)) {
        if ($null -ne $Record.switch -and "$($switch.Id)" -eq $Record.switch) {
            return "$($switch.Id)"
        }
    }
}

function Set-WinhostNatSwitch {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('made', 'network')
    $name = "$($Key.name)"
    if ($name -cnotmatch '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\z') {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'The name of a NAT has lower-case letters, digits and dashes between them.'
    }
    $record = Find-WinhostRecord 'nat' $name
    if (-not (Test-WinhostDesired $Desired 'made')) {
        Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' 'A NAT keeps its network: take it away first.'
    }
    Assert-WinhostBoolean $Desired @('made')
    if (-not $Desired.made) {
        Remove-WinhostNatSwitch $name $record
        return
    }
    $network = Read-WinhostField $Desired 'network'
    if ("$network" -cnotmatch '^[0-9.]+/([1-9]|[12][0-9]|30)\z' -or -not (Test-WinhostNetworks @($network))) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'network is an IPv4 network with room for hosts.'
    }
    Add-WinhostNatSwitch $name $record $network
}

function Add-WinhostNatSwitch {
    param([string]$Name, $Record, [string]$Network)
    foreach ($nat in @(Get-NetNat -ErrorAction Stop)) {
        if ($null -eq $Record -or -not (Test-WinhostText "$($nat.Name)" $Name 'OrdinalIgnoreCase')) {
            Stop-Winhost 'Winhost.OtherNat' 'ResourceExists' "The host has the NAT $($nat.Name) for $($nat.InternalIPInterfaceAddressPrefix) already, and Windows has one at a time."
        }
    }
    $mine = @{ network = $Network; switch = $null; complete = $false; name = $Name }
    if ($null -ne $Record) {
        $mine.switch = $Record.switch
    }
    $switch = Find-WinhostNamedSwitch $Name
    if ($null -ne $switch -and ($null -eq $Record -or ($null -ne $mine.switch -and "$($switch.Id)" -ne $mine.switch))) {
        Stop-Winhost 'Winhost.NameTaken' 'ResourceExists' "There is a switch $Name already, which winhost did not make."
    }
    Write-WinhostRecord 'nat' $Name $mine
    if ($null -eq $switch) {
        $switch = New-VMSwitch -Name $Name -SwitchType Internal -ErrorAction Stop
    }
    $mine.switch = "$($switch.Id)"
    Write-WinhostRecord 'nat' $Name $mine
    Write-WinhostNatAddress $mine
    if (@(Get-NetNat -ErrorAction Stop).Count -eq 0) {
        $null = New-NetNat -Name $Name -InternalIPInterfaceAddressPrefix $Network -ErrorAction Stop
    }
    $mine.complete = $true
    Write-WinhostRecord 'nat' $Name $mine
}

function Find-WinhostNamedSwitch {
    param([string]$Name)
    foreach ($switch in @(Get-VMSwitch -ErrorAction Stop)) {
        if (Test-WinhostText "$($switch.Name)" $Name 'OrdinalIgnoreCase') {
            return $switch
        }
    }
}

function Write-WinhostNatAddress {
    param($Record)
    $base, $length = $Record.network.Split('/')
    $bytes = [System.Net.IPAddress]::Parse($base).GetAddressBytes()
    $bytes[3] += 1
    $address = $bytes -join '.'
    # The host's port on a new switch is not listed at once, and has no link while no VM is connected.
    $port = Wait-WinhostSwitchInterface ([PSCustomObject]$Record) $true $false
    foreach ($found in @(Get-NetIPAddress -ErrorAction Stop)) {
        if ($found.InterfaceIndex -eq $port.InterfaceIndex -and "$($found.IPAddress)" -ceq $address) {
            return
        }
    }
    $null = New-NetIPAddress -InterfaceIndex $port.InterfaceIndex -IPAddress $address -PrefixLength ([int]$length) -ErrorAction Stop
}

function Remove-WinhostNatSwitch {
    param([string]$Name, $Record)
    if ($null -eq $Record) {
        return
    }
    if ((Measure-WinhostSwitchUsers $Record.switch) -gt 0) {
        Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' 'VMs are connected to it.'
    }
    foreach ($nat in @(Get-NetNat -ErrorAction Stop)) {
        if (Test-WinhostText "$($nat.Name)" $Name 'OrdinalIgnoreCase') {
            Remove-NetNat -InputObject $nat -Confirm:$false -ErrorAction Stop
        }
    }
    foreach ($switch in @(Get-VMSwitch -ErrorAction Stop)) {
        # The switch is found by its recorded id; if the change was interrupted before that was written, by its name, which
        # was free before.
        $named = $null -eq $Record.switch -and (Test-WinhostText "$($switch.Name)" $Name 'OrdinalIgnoreCase')
        if ($named -or "$($switch.Id)" -eq "$($Record.switch)") {
            Remove-VMSwitch -VMSwitch $switch -Force -Confirm:$false -ErrorAction Stop
        }
    }
    Write-WinhostRecord 'nat' $Name $null
}
