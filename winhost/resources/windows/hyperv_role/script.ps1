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
    # Not by the module: ServerManager may stand on a client too, with the administration tools.
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
    # One call each way: a second one is refused while a first waits for its restart.
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
        # With what they lie in, or that and the other tools, which came with them, would stay.
        $features = @{ 'Microsoft-Hyper-V-All' = 'available' }
    }
    Switch-WinhostFeatures $features
}
