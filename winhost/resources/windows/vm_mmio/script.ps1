# key {vm: guid}   state {low: bytes, high: bytes, cache: bool}
function Get-WinhostVmMmio {
    param($Key)
    foreach ($vm in @(Find-WinhostVms $Key)) {
        $state = @{
            low = [long]$vm.LowMemoryMappedIoSpace
            high = [long]$vm.HighMemoryMappedIoSpace
            cache = [bool]$vm.GuestControlledCacheTypes
        }
        @{ key = @{ vm = "$($vm.Id)" }; state = $state }
    }
}

function Set-WinhostVmMmio {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('low', 'high', 'cache')
    Assert-WinhostBoolean $Desired @('cache')
    $vm = Find-WinhostVm $Key
    if (Test-WinhostDesired $Desired 'low') {
        Set-VM -VM $vm -LowMemoryMappedIoSpace ([uint32]$Desired.low) -ErrorAction Stop
    }
    if (Test-WinhostDesired $Desired 'high') {
        Set-VM -VM $vm -HighMemoryMappedIoSpace ([uint64]$Desired.high) -ErrorAction Stop
    }
    if (Test-WinhostDesired $Desired 'cache') {
        Set-VM -VM $vm -GuestControlledCacheTypes $Desired.cache -ErrorAction Stop
    }
}
