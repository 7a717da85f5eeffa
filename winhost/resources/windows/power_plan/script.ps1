# key {scheme: guid}   state {name: text, active: bool, standby: seconds, hibernate: seconds, modern_standby: bool}; set: standby, hibernate
function Get-WinhostPowerPlan {
    $plans = @(Get-CimInstance -Namespace 'root\cimv2\power' -ClassName Win32_PowerPlan -ErrorAction Stop)
    if ($plans.Count -eq 0) {
        return
    }
    $settings = @(Get-CimInstance -Namespace 'root\cimv2\power' -ClassName Win32_PowerSettingDataIndex -ErrorAction Stop)
    $modern = Read-WinhostValue { Read-WinhostModernStandby }
    foreach ($plan in $plans) {
        $scheme = "$($plan.InstanceID)".Split([char[]]'{}')[1].ToLowerInvariant()
        $state = @{
            name = "$($plan.ElementName)"
            active = [bool]$plan.IsActive
            standby = Read-WinhostValue { Read-WinhostPowerSetting $settings $scheme 'standby' }
            hibernate = Read-WinhostValue { Read-WinhostPowerSetting $settings $scheme 'hibernate' }
            modern_standby = $modern
        }
        @{ key = @{ scheme = $scheme }; state = $state }
    }
}

$script:WinhostPowerSettings = @{ standby = '29f6c1db-86da-48c5-9fdb-f2b67b1f44da'; hibernate = '9d7815a6-7ee4-497e-8888-515a05f02364' }

function Read-WinhostPowerSetting {
    param($Settings, [string]$Scheme, [string]$Name)
    # Reads only the settings for AC power, because an endpoint does not run on battery power.
    $id = "Microsoft:PowerSettingDataIndex\{$Scheme}\AC\{$($script:WinhostPowerSettings[$Name])}"
    foreach ($each in $Settings) {
        if ("$($each.InstanceID)" -eq $id) {
            return [long]$each.SettingIndexValue
        }
    }
    Stop-Winhost 'Winhost.NotExposed' 'NotImplemented' 'This power plan has no such setting.'
}

function Read-WinhostModernStandby {
    $ended = Invoke-WinhostNative 'powercfg.exe' @('/a') 60
    $lines = @("$($ended.output)" -split '\r?\n')
    for ($number = 0; $number -lt $lines.Count; $number++) {
        # The name S0 is not localized. Below an unavailable state is the reason, on a line that begins with a tab.
        if ($lines[$number] -match '^ .*\bS0\b') {
            return -not ($number + 1 -lt $lines.Count -and $lines[$number + 1].StartsWith("`t"))
        }
    }
    Stop-Winhost 'Winhost.NotExposed' 'NotImplemented' 'powercfg.exe does not say whether this computer has Modern Standby.'
}

function Set-WinhostPowerPlan {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('standby', 'hibernate')
    Assert-WinhostAdministrator
    foreach ($plan in @(Get-WinhostPowerPlan)) {
        if (Test-WinhostKey $Key $plan) {
            Write-WinhostPowerPlan $plan $Desired
        }
    }
}

function Write-WinhostPowerPlan {
    param($Plan, $Desired)
    foreach ($property in @($Desired.PSObject.Properties)) {
        $seconds = $property.Value
        if ("$seconds" -notmatch '\A[0-9]{1,10}\z' -or $seconds -is [string] -or $seconds -gt 4294967295) {
            Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' "$seconds is not a number of seconds."
        }
    }
    foreach ($property in @($Desired.PSObject.Properties)) {
        $setting = $script:WinhostPowerSettings[$property.Name]
        $words = @('/setacvalueindex', $Plan.key.scheme, '238c9fa8-0aad-41ed-83f4-97be242c8f20', $setting, "$($property.Value)")
        $null = Invoke-WinhostProgram 'powercfg.exe' $words 'Winhost.PowerPlanRefused'
    }
    if ($Plan.state.active) {
        # A change of the active plan takes effect when the plan is activated again.
        $null = Invoke-WinhostProgram 'powercfg.exe' @('/setactive', $Plan.key.scheme) 'Winhost.PowerPlanRefused'
    }
}
