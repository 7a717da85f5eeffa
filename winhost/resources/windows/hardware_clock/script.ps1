# key {}   state {utc: bool}
function Get-WinhostHardwareClock {
    $set = Read-WinhostRegistry 'SYSTEM\CurrentControlSet\Control\TimeZoneInformation' 'RealTimeIsUniversal'
    @{ key = @{}; state = @{ utc = [int]$set -eq 1 } }
}
