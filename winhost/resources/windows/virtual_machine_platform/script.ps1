# key {}   state {feature: text}; set: feature is installed or available
function Get-WinhostVirtualMachinePlatform {
    @{ key = @{}; state = @{ feature = Read-WinhostOptionalFeature 'VirtualMachinePlatform' } }
}

function Set-WinhostVirtualMachinePlatform {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('feature')
    Switch-WinhostFeatures @{ VirtualMachinePlatform = $Desired.feature }
}

# ---- optional features of Windows, also for other resources

function Read-WinhostOptionalFeature {
    param([string]$Name)
    $words = @{
        Enabled = 'installed'
        Disabled = 'available'
        EnablePending = 'install-pending'
        DisablePending = 'uninstall-pending'
    }
    # Lists all features, because the cmdlet fails for the name of a feature that this edition does not have.
    foreach ($feature in @(Read-WinhostCached 'optional features' { Get-WindowsOptionalFeature -Online -ErrorAction Stop })) {
        if ($feature.FeatureName -eq $Name -and $words.ContainsKey("$($feature.State)")) {
            return $words["$($feature.State)"]
        }
    }
    'removed'
}

function Switch-WinhostFeatures {
    param($Desired)
    $install = @()
    $remove = @()
    foreach ($name in @($Desired.Keys | Sort-Object)) {
        if ((ConvertFrom-WinhostKebab $Desired[$name] @('Installed', 'Available')) -eq 'Installed') {
            $install += $name
        }
        else {
            $remove += $name
        }
        if ((Read-WinhostOptionalFeature $name) -eq 'removed') {
            Stop-Winhost 'Winhost.FeatureNotHere' 'NotInstalled' "This edition of Windows has no feature $name, or its files were removed."
        }
    }
    # One call to install and one to remove: a further call is refused while a restart is pending.
    $results = @()
    if ($install.Count -gt 0) {
        $results += Enable-WindowsOptionalFeature -Online -FeatureName $install -All -NoRestart -ErrorAction Stop
    }
    if ($remove.Count -gt 0) {
        $results += Disable-WindowsOptionalFeature -Online -FeatureName $remove -NoRestart -ErrorAction Stop
    }
    foreach ($result in $results) {
        if ($result.RestartNeeded) {
            return @{ restart = @(@{ system = 'host' }) }
        }
    }
}
