# key {}   state {allow_wsl: bool or null, allow_inbox: bool or null, allow_kernel: bool or null, allow_kernel_command_line: bool or null, allow_system_distro: bool or null, allow_networking: bool or null, allow_firewall: bool or null, allow_nested: bool or null, default_networking: number or null}
function Get-WinhostWslPolicy {
    $state = @{
        allow_wsl = 'AllowWSL'
        allow_inbox = 'AllowInboxWSL'
        allow_kernel = 'AllowKernelUserSetting'
        allow_kernel_command_line = 'AllowKernelCommandLineUserSetting'
        allow_system_distro = 'AllowSystemDistroUserSetting'
        allow_networking = 'AllowNetworkingModeUserSetting'
        allow_firewall = 'AllowFirewallUserSetting'
        allow_nested = 'AllowNestedVirtualization'
        default_networking = Read-WinhostValue { Read-WinhostRegistry 'SOFTWARE\Policies\WSL' 'DefaultNetworkingMode' }
    }
    foreach ($name in @($state.Keys -like 'allow_*')) {
        $state[$name] = Read-WinhostValue { Read-WinhostWslPolicy $state[$name] }
    }
    @{ key = @{}; state = $state }
}

function Read-WinhostWslPolicy {
    param([string]$Name)
    # WSL takes what is neither 0 nor 1, and any text, for not set.
    $found = Read-WinhostRegistry 'SOFTWARE\Policies\WSL' $Name
    if ($found -is [string] -or @(0, 1) -notcontains $found) {
        return $null
    }
    $found -eq 1
}
