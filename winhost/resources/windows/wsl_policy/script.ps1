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
        $state[$name] = Read-WinhostValue {
            # WSL ignores text, and numbers other than 0 and 1.
            $found = Read-WinhostRegistry 'SOFTWARE\Policies\WSL' $state[$name]
            if ($found -isnot [string] -and @(0, 1) -contains $found) {
                $found -eq 1
            }
        }
    }
    @{ key = @{}; state = $state }
}
