# key {}   state {allow_wsl: bool or null, allow_inbox: bool or null, allow_kernel: bool or null, allow_kernel_command_line: bool or null, allow_system_distro: bool or null, allow_networking: bool or null, allow_firewall: bool or null, allow_nested: bool or null, default_networking: number or null}
function Get-WinhostWslPolicy {
    $state = @{
        allow_wsl = Read-WinhostValue { Read-WinhostWslPolicy 'AllowWSL' }
        allow_inbox = Read-WinhostValue { Read-WinhostWslPolicy 'AllowInboxWSL' }
        allow_kernel = Read-WinhostValue { Read-WinhostWslPolicy 'AllowKernelUserSetting' }
        allow_kernel_command_line = Read-WinhostValue { Read-WinhostWslPolicy 'AllowKernelCommandLineUserSetting' }
        allow_system_distro = Read-WinhostValue { Read-WinhostWslPolicy 'AllowSystemDistroUserSetting' }
        allow_networking = Read-WinhostValue { Read-WinhostWslPolicy 'AllowNetworkingModeUserSetting' }
        allow_firewall = Read-WinhostValue { Read-WinhostWslPolicy 'AllowFirewallUserSetting' }
        allow_nested = Read-WinhostValue { Read-WinhostWslPolicy 'AllowNestedVirtualization' }
        default_networking = Read-WinhostValue { Read-WinhostRegistry 'SOFTWARE\Policies\WSL' 'DefaultNetworkingMode' }
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
