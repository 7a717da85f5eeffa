# key {}   state {batteries: int, on_battery: bool}
function Get-WinhostPowerSource {
    $batteries = @(Get-CimInstance -ClassName Win32_Battery -ErrorAction Stop)
    $discharging = $false
    foreach ($battery in $batteries) {
        # 1: discharging. Low (4) and critical (5) are on battery as well.
        $discharging = $discharging -or @(1, 4, 5) -contains (Assert-WinhostValue $battery.BatteryStatus)
    }
    @{ key = @{}; state = @{ batteries = $batteries.Count; on_battery = $discharging } }
}
