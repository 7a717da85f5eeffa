# key {}   state {role: text, tools: text, vms: int}; set: role, tools are installed or available
function Get-WinhostHyperVRole {
    if (Test-WinhostClientWindows) {
        $features = @{
            role = Read-WinhostOptionalFeature 'Microsoft-Hyper-V'
            tools = Read-WinhostOptionalFeature 'Microsoft-Hyper-V-Management-PowerShell'
        }
    }
    else {
        $features = @{ role = 'removed'; tools = 'removed' }
        foreach ($feature in @(Get-WindowsFeature -Name 'Hyper-V', 'Hyper-V-PowerShell' -ErrorAction Stop)) {
            $part = @('tools', 'role')[[int]($feature.Name -eq 'Hyper-V')]
            $features[$part] = ConvertTo-WinhostKebab "$($feature.InstallState)"
        }
    }
    $vms = Read-WinhostValue {
        if (-not (Test-WinhostHyperV)) {
            return 0
        }
        @(Find-WinhostVms $null).Count
    }
    $state = @{ role = $features.role; tools = $features.tools; vms = $vms }
    @{ key = @{}; state = $state }
}

function Test-WinhostClientWindows {
    # The ServerManager module is no criterion: with the administration tools, it exists on a client as well.
    $type = Read-WinhostRegistry 'SOFTWARE\Microsoft\Windows NT\CurrentVersion' 'InstallationType'
    "$type" -eq 'Client'
}

function Set-WinhostHyperVRole {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('role', 'tools')
    if (Test-WinhostClientWindows) {
        return Switch-WinhostClientFeatures $Desired
    }
    $names = @{ role = 'Hyper-V'; tools = 'Hyper-V-PowerShell' }
    $install = @()
    $remove = @()
    foreach ($property in @($Desired.PSObject.Properties)) {
        if ((ConvertFrom-WinhostKebab $property.Value @('Installed', 'Available')) -eq 'Installed') {
            $install += $names[$property.Name]
        }
        else {
            $remove += $names[$property.Name]
        }
    }
    # One call to install and one to remove: a further call is refused while a restart is pending.
    $results = @()
    if ($install.Count -gt 0) {
        $results += Install-WindowsFeature -Name $install -Confirm:$false -ErrorAction Stop
    }
    if ($remove.Count -gt 0) {
        $results += Uninstall-WindowsFeature -Name $remove -Confirm:$false -ErrorAction Stop
    }
    $state = (Get-WinhostHyperVRole).state
    $pending = $state.role -like '*-pending' -or $state.tools -like '*-pending'
    foreach ($result in $results) {
        $pending = $pending -or "$($result.RestartNeeded)" -eq 'Yes'
    }
    if ($pending) {
        @{ restart = @(@{ system = 'host' }) }
    }
}

function Switch-WinhostClientFeatures {
    param($Desired)
    $names = @{ role = 'Microsoft-Hyper-V'; tools = 'Microsoft-Hyper-V-Management-PowerShell' }
    $features = @{}
    foreach ($property in @($Desired.PSObject.Properties)) {
        $features[$names[$property.Name]] = $property.Value
    }
    if ((@($features.Values) -join ' ') -ceq 'available available') {
        # Removes the containing feature as well. Otherwise it and its other tools would remain.
        $features = @{ 'Microsoft-Hyper-V-All' = 'available' }
    }
    Switch-WinhostFeatures $features
}
