# key {creator: guid}   state {inbound: allow | block | not-configured, ports: [number]}
function Get-WinhostHyperVFirewall {
    # Only of WSL, and only where Windows has this firewall.
    if (-not (Test-WinhostCommand 'Get-NetFirewallHyperVVMSetting')) {
        return
    }
    $state = @{ inbound = Read-WinhostValue { Read-WinhostInbound }; ports = Read-WinhostList { Find-WinhostOpenPorts } }
    @{ key = @{ creator = '40e0ac32-46a5-438a-a0b2-2b479e8f2e90' }; state = $state }
}

function Set-WinhostHyperVFirewall {
    param($Key, $Want, $How)
    Assert-WinhostWant $Want @('inbound', 'ports')
    $creator = '{40E0AC32-46A5-438A-A0B2-2B479E8F2E90}'
    if (Test-WinhostWanted $Want 'ports') {
        foreach ($port in @($Want.ports)) {
            $null = Assert-WinhostPort $port
        }
    }
    if (Test-WinhostWanted $Want 'inbound') {
        $inbound = ConvertFrom-WinhostWord $Want.inbound @('Allow', 'Block', 'NotConfigured')
        Set-NetFirewallHyperVVMSetting -Name $creator -DefaultInboundAction $inbound -Confirm:$false -ErrorAction Stop
    }
    if (-not (Test-WinhostWanted $Want 'ports')) {
        return
    }
    foreach ($rule in @(Find-WinhostVmRules)) {
        Remove-NetFirewallHyperVRule -InputObject $rule -Confirm:$false -ErrorAction Stop
    }
    foreach ($port in @($Want.ports)) {
        $null = New-NetFirewallHyperVRule -Name "winhost-vm-port-$port" -DisplayName "winhost port $port" -Direction 'Inbound' -VMCreatorId $creator -Protocol 'TCP' -LocalPorts "$port" -Action 'Allow' -ErrorAction Stop
    }
}

function Read-WinhostInbound {
    foreach ($setting in @(Get-NetFirewallHyperVVMSetting -ErrorAction Stop)) {
        if ("$($setting.Name)" -eq '{40E0AC32-46A5-438A-A0B2-2B479E8F2E90}') {
            return ConvertTo-WinhostWord "$($setting.DefaultInboundAction)"
        }
    }
    'not-configured'
}

function Find-WinhostVmRules {
    foreach ($rule in @(Get-NetFirewallHyperVRule -ErrorAction Stop)) {
        if ("$($rule.Name)" -cmatch '^winhost-vm-port-[1-9][0-9]{0,4}\z') {
            $rule
        }
    }
}

function Find-WinhostOpenPorts {
    foreach ($rule in @(Find-WinhostVmRules)) {
        [int]"$($rule.Name)".Substring('winhost-vm-port-'.Length)
    }
}
