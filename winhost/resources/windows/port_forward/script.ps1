# key {port: number}   state {target: IPv4 address or null, connect_port: number or null, allowed: [network] or null}; allowed is empty while nobody may come in
function Get-WinhostPortForward {
    param($Key)
    $rules = @(Find-WinhostPortRules)
    if ($null -ne $Key -or $rules.Count -gt 0) {
        Assert-WinhostPart 'Read-WinhostForwards'
        Read-WinhostForwards $Key $rules
    }
}

function Read-WinhostForwards {
    param($Key, $Rules)
    $ports = @(foreach ($rule in $Rules) { "$($rule.Name)".Substring('winhost-port-'.Length) })
    if ($null -ne $Key) {
        $ports = @("$(Read-WinhostField $Key 'port')")
    }
    foreach ($port in $ports) {
        $state = @{ target = $null; connect_port = $null; allowed = $null }
        foreach ($rule in $Rules) {
            # A forward without winhost's rule belongs to somebody else.
            if (Test-WinhostText "$($rule.Name)" "winhost-port-$port" 'Ordinal') {
                $state.target, $state.connect_port = @(Read-WinhostProxy $port)
                $state.allowed = @(Read-WinhostRuleNetworks $rule)
            }
        }
        @{ key = @{ port = $port }; state = $state }
    }
}

function Set-WinhostPortForward {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('target', 'connect_port', 'allowed')
    Assert-WinhostAdministrator
    $port = Assert-WinhostPort (Read-WinhostField $Key 'port')
    $goal = Join-WinhostForward (Get-WinhostPortForward $Key).state $Desired
    $rules = @(foreach ($rule in @(Find-WinhostPortRules)) { if ("$($rule.Name)" -ceq "winhost-port-$port") { $rule } })
    if ($rules.Count -eq 0 -and @(Read-WinhostProxy $port).Count -gt 0) {
        Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' "Port $port is forwarded already, and not by winhost."
    }
    # The rule marks the forward as winhost's and exists as long as the forward. It is disabled during the change, so that
    # a failure leaves the port closed, and the forward can still be removed.
    foreach ($rule in $rules) {
        Set-NetFirewallRule -InputObject $rule -Enabled 'False' -ErrorAction Stop
    }
    if ($null -eq $goal.target) {
        Remove-WinhostForward $port $rules
        return
    }
    if ($rules.Count -eq 0) {
        $null = New-NetFirewallRule -Name "winhost-port-$port" -DisplayName "winhost port $port" -Group 'winhost' -Enabled 'False' -Direction 'Inbound' -Action 'Allow' -Protocol 'TCP' -LocalPort $port -RemoteAddress $goal.allowed -ErrorAction Stop
    }
    $words = @('interface', 'portproxy', 'set', 'v4tov4', 'listenaddress=0.0.0.0', "listenport=$port", "connectaddress=$($goal.target)", "connectport=$($goal.connect_port)")
    $null = Invoke-WinhostProgram 'netsh.exe' $words 'Winhost.NetshFailed'
    Set-NetFirewallRule -Name "winhost-port-$port" -RemoteAddress $goal.allowed -Enabled 'True' -ErrorAction Stop
}

function Remove-WinhostForward {
    param([int]$Port, $Rules)
    if (@(Read-WinhostProxy $Port).Count -gt 0) {
        $words = @('interface', 'portproxy', 'delete', 'v4tov4', 'listenaddress=0.0.0.0', "listenport=$Port")
        $null = Invoke-WinhostProgram 'netsh.exe' $words 'Winhost.NetshFailed'
    }
    foreach ($rule in $Rules) {
        Remove-NetFirewallRule -InputObject $rule -Confirm:$false -ErrorAction Stop
    }
}

function Read-WinhostRuleNetworks {
    param($Rule)
    if (Test-WinhostRuleDisabled $Rule) {
        return
    }
    $filter = Get-NetFirewallAddressFilter -AssociatedNetFirewallRule $Rule -ErrorAction Stop
    foreach ($network in @($filter.RemoteAddress)) {
        ConvertTo-WinhostNetwork $network
    }
}

function Test-WinhostRuleDisabled {
    param($Rule)
    # A disabled rule opens no port. Its class has a number for that state (2), and the module a name (False).
    @('False', '2') -contains "$(Read-WinhostField $Rule 'Enabled')"
}

function ConvertTo-WinhostNetwork {
    param([string]$Network)
    # Converts an address of a firewall rule to a network. Windows returns a mask instead of a prefix length, and a single
    # address without one. Any means all addresses; other keywords, such as LocalSubnet, and ranges are not networks and
    # are returned unchanged.
    if (@('Any', '*') -contains $Network) {
        return @('0.0.0.0/0', '::/0')
    }
    $address, $mask = $Network.Split('/')
    $parsed = $null
    # .NET would also parse a plain number as an address.
    if ($address -notmatch '[.:]' -or -not [System.Net.IPAddress]::TryParse($address, [ref]$parsed)) {
        return $Network
    }
    if ($null -eq $mask) {
        return @("$address/32", "$address/128")[[int]$address.Contains(':')]
    }
    if (-not "$mask".Contains('.')) {
        return $Network
    }
    $bits = ConvertTo-WinhostBits "$mask".Split('.')
    if ($bits.Contains('01')) {
        return $Network
    }
    "$address/$($bits.Replace('0', '').Length)"
}

function ConvertTo-WinhostBits {
    param([byte[]]$Bytes)
    @(foreach ($byte in $Bytes) { [System.Convert]::ToString($byte, 2).PadLeft(8, '0') }) -join ''
}

function Join-WinhostForward {
    param($Before, $Desired)
    $goal = @{ target = $Before.target; connect_port = $Before.connect_port; allowed = $Before.allowed }
    Join-WinhostDesired $goal $Desired
    if (@($goal.allowed).Count -eq 0) {
        # The forward is closed. A rule without networks would open the port to all.
        $goal.allowed = $null
    }
    $missing = @(foreach ($each in @($goal.target, $goal.connect_port, $goal.allowed)) { if ($null -eq $each) { 1 } }).Count
    if ($missing -eq 3) {
        return $goal
    }
    if ($missing -gt 0) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'A forward has target, connect_port and allowed, or none of them.'
    }
    if ("$($goal.target)" -notmatch '^(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])(\.(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])){3}\z') {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' "$($goal.target) is no IPv4 address."
    }
    $goal.connect_port = Assert-WinhostPort $goal.connect_port
    $goal.allowed = @($goal.allowed)
    Assert-WinhostNetworks $goal.allowed
    $goal
}

function Assert-WinhostNetworks {
    param($Networks)
    if (-not (Test-WinhostNetworks $Networks)) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'A network is an address and the length of its prefix, and has no bits beyond that.'
    }
}

function Test-WinhostNetworks {
    param($Networks)
    foreach ($network in @($Networks)) {
        if ("$network" -cnotmatch '^([0-9a-f.:]+)/(0|[1-9][0-9]{0,2})\z') {
            return $false
        }
        $text, $length = $Matches[1], [int]$Matches[2]
        $address = $null
        # Only the canonical form is accepted, so that what is read back equals what was desired.
        if (-not [System.Net.IPAddress]::TryParse($text, [ref]$address) -or "$address" -cne $text) {
            return $false
        }
        $bits = ConvertTo-WinhostBits $address.GetAddressBytes()
        if ($length -gt $bits.Length -or $bits.Substring($length).Contains('1')) {
            return $false
        }
    }
    $true
}

function Assert-WinhostPort {
    param($Port)
    # The port becomes an argument of netsh.
    if ("$Port" -notmatch '^[1-9][0-9]{0,4}\z' -or [int]"$Port" -gt 65535) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'A port is a number from 1 to 65535.'
    }
    [int]"$Port"
}

function Find-WinhostPortRules {
    foreach ($rule in @(Read-WinhostOptional 'CmdletizationQuery_NotFound*' { Get-NetFirewallRule -Group 'winhost' -ErrorAction Stop })) {
        if ("$($rule.Name)" -cmatch '^winhost-port-[1-9][0-9]{0,4}\z') {
            $rule
        }
    }
}

function Read-WinhostProxy {
    param([string]$Port)
    # Returns target and port from the registry, where netsh stores them as address/port, because the output of netsh is
    # localized. Nothing if there is no forward.
    $found = Read-WinhostRegistry 'SYSTEM\CurrentControlSet\Services\PortProxy\v4tov4\tcp' "0.0.0.0/$Port"
    if ("$found" -match '^([0-9.]+)/([0-9]+)\z') {
        $Matches[1]
        [int]$Matches[2]
    }
}
