# key {creator: guid}   state {inbound: allow | block | not-configured, ports: [number], allowed: [network] or null}
# The VM creator id of WSL.
$script:WinhostWslCreator = '{40E0AC32-46A5-438A-A0B2-2B479E8F2E90}'

function Get-WinhostHyperVFirewall {
    # Reads only the rules for WSL, and only if this Windows has the Hyper-V firewall.
    if (-not (Test-WinhostCommand 'Get-NetFirewallHyperVVMSetting')) {
        return
    }
    $state = @{ inbound = $null; ports = @(); allowed = $null }
    $state.inbound = Read-WinhostValue {
        foreach ($setting in @(Get-NetFirewallHyperVVMSetting -ErrorAction Stop)) {
            if ("$($setting.Name)" -eq $script:WinhostWslCreator) {
                return ConvertTo-WinhostKebab "$($setting.DefaultInboundAction)"
            }
        }
        'not-configured'
    }
    $rules = Read-WinhostList { Find-WinhostVmRules }
    if ($rules -isnot [array] -or $rules.Count -gt 0) {
        Assert-WinhostPart 'Read-WinhostOpenings'
        Read-WinhostOpenings $state
    }
    @{ key = @{ creator = ConvertTo-WinhostGuid $script:WinhostWslCreator }; state = $state }
}

function Read-WinhostOpenings {
    param($State)
    $State.ports = Read-WinhostList { Find-WinhostOpenPorts }
    $allowed = Read-WinhostList { Find-WinhostVmAllowedNetworks }
    if ($allowed -isnot [array] -or $allowed.Count -gt 0) {
        $State.allowed = $allowed
    }
}

function Set-WinhostHyperVFirewall {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('inbound', 'ports', 'allowed')
    $creator = $script:WinhostWslCreator
    $goal = Join-WinhostOpenings $Desired
    if (Test-WinhostDesired $Desired 'inbound') {
        $inbound = ConvertFrom-WinhostKebab $Desired.inbound @('Allow', 'Block', 'NotConfigured')
        Set-NetFirewallHyperVVMSetting -Name $creator -DefaultInboundAction $inbound -Confirm:$false -ErrorAction Stop
    }
    if ($null -eq $goal) {
        return
    }
    foreach ($rule in $goal.replaced) {
        Remove-NetFirewallHyperVRule -InputObject $rule -Confirm:$false -ErrorAction Stop
    }
    foreach ($port in $goal.ports) {
        $name = "winhost-vm-port-$port"
        if ($goal.from.Count -gt 0) {
            $null = New-NetFirewallHyperVRule -Name $name -DisplayName "winhost port $port" -Direction 'Inbound' -VMCreatorId $creator -Protocol 'TCP' -LocalPorts "$port" -RemoteAddresses $goal.from -Action 'Allow' -ErrorAction Stop
        }
        else {
            # All addresses are the default; there is no documented value for them.
            $null = New-NetFirewallHyperVRule -Name $name -DisplayName "winhost port $port" -Direction 'Inbound' -VMCreatorId $creator -Protocol 'TCP' -LocalPorts "$port" -Action 'Allow' -ErrorAction Stop
        }
    }
}

function Join-WinhostOpenings {
    param($Desired)
    # Returns the desired rules, or nothing if no rule is to be changed.
    if (-not (Test-WinhostDesired $Desired 'ports') -and -not (Test-WinhostDesired $Desired 'allowed')) {
        return
    }
    $ports = @(Find-WinhostOpenPorts)
    # A disabled rule opens no port. It is replaced only if ports are desired.
    $replaced = @(Find-WinhostOpenRules)
    if (Test-WinhostDesired $Desired 'ports') {
        $replaced = @(Find-WinhostVmRules)
        $ports = @(foreach ($port in @($Desired.ports)) { Assert-WinhostPort $port })
    }
    $allowed = @(Find-WinhostVmAllowedNetworks)
    if (Test-WinhostDesired $Desired 'allowed') {
        $allowed = @(foreach ($network in @($Desired.allowed)) { if ($null -ne $network) { "$network" } })
        Assert-WinhostNetworks $allowed
        if ($null -ne $Desired.allowed -and ($ports.Count -eq 0 -or $allowed.Count -eq 0)) {
            Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'Networks are allowed to come to a port, and everybody by null.'
        }
    }
    @{ ports = $ports; from = $allowed; replaced = $replaced }
}

function Find-WinhostVmRules {
    foreach ($rule in @(Get-NetFirewallHyperVRule -ErrorAction Stop)) {
        if ("$($rule.Name)" -cmatch '^winhost-vm-port-[1-9][0-9]{0,4}\z') {
            $rule
        }
    }
}

function Find-WinhostOpenRules {
    foreach ($rule in @(Find-WinhostVmRules)) {
        if (-not (Test-WinhostRuleDisabled $rule)) {
            $rule
        }
    }
}

function Find-WinhostOpenPorts {
    foreach ($rule in @(Find-WinhostOpenRules)) {
        [int]"$($rule.Name)".Substring('winhost-vm-port-'.Length)
    }
}

function Find-WinhostVmAllowedNetworks {
    # Returns the networks that can reach the ports; nothing if all can.
    $found = @()
    foreach ($rule in @(Find-WinhostOpenRules)) {
        # A rule without addresses applies to all, whether its list is empty or contains only null.
        $remote = @(foreach ($each in $rule.RemoteAddresses) { if ($null -ne $each) { $each } })
        if ($remote.Count -eq 0) {
            return
        }
        foreach ($network in @(foreach ($each in $remote) { ConvertTo-WinhostNetwork $each })) {
            if ($found -notcontains $network) {
                $found += $network
            }
        }
    }
    if ($found -notcontains '0.0.0.0/0' -or $found -notcontains '::/0') {
        $found
    }
}
