# key {location: path, device: ids}   state {current: WDDM | TCC | MCDM or null, pending: WDDM | TCC | MCDM or null}; set: pending; how {accept: headless}
function Get-WinhostGpuDriverModel {
    foreach ($function in @(Find-WinhostPciFunctions)) {
        if ($function.key.device -like 'VEN_10DE&*' -and (Test-WinhostDisplay $function)) {
            $state = @{
                current = Read-WinhostValue { Read-WinhostDriverModel $function 'current' }
                pending = Read-WinhostValue { Read-WinhostDriverModel $function 'pending' }
            }
            @{ key = @{ location = $function.key.location; device = $function.key.device }; state = $state }
        }
    }
}

function Set-WinhostGpuDriverModel {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('pending')
    Assert-WinhostAdministrator
    $names = @('WDDM', 'TCC', 'MCDM')
    $number = [Array]::IndexOf($names, "$($Desired.pending)")
    if ($number -lt 0) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' "$($Desired.pending) is none of $($names -join ', ')."
    }
    foreach ($function in @(Find-WinhostPciFunctions)) {
        if (Test-WinhostKey $Key $function) {
            Switch-WinhostDriverModel $function $names[$number] $number $How
        }
    }
}

function Switch-WinhostDriverModel {
    param($Function, [string]$Model, [int]$Number, $How)
    # Only WDDM supports displays.
    if ($Model -ne 'WDDM' -and (Measure-WinhostDisplays $Function) -gt 0 -and -not (Test-WinhostConsent $How 'headless')) {
        Stop-Winhost 'Winhost.TakesDisplay' 'InvalidOperation' 'A display is connected to this GPU, and would stay dark.'
    }
    $ended = Invoke-WinhostNative 'nvidia-smi.exe' @('-i', (Read-WinhostPciAddress $Function), '-dm', "$Number") 60
    if ($null -eq $ended) {
        Stop-Winhost 'Winhost.DriverModelRefused' 'ObjectNotFound' 'There is no nvidia-smi.exe: the driver of NVIDIA is not installed.'
    }
    # nvidia-smi.exe may report a refusal as a warning and exit with 0, so the model is read back.
    $pending = Read-WinhostDriverModel $Function 'pending'
    if ($ended.code -ne 0 -or $pending -ne $Model) {
        $output = ("$($ended.output)" -replace '\s+', ' ').Trim()
        $why = 'This GPU or its driver knows no such model: consumer GPUs are always WDDM, and GPUs of data centers mostly never.'
        Stop-Winhost 'Winhost.DriverModelRefused' 'InvalidOperation' "$why nvidia-smi.exe: $($ended.code) $output"
    }
    if ((Read-WinhostDriverModel $Function 'current') -ne $pending) {
        @{ restart = @(@{ system = 'host' }) }
    }
}
