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
    param($Key, $Want, $How)
    Assert-WinhostWant $Want @('low', 'high', 'cache')
    $vm = Find-WinhostVm $Key
    if (Test-WinhostWanted $Want 'low') {
        Set-VM -VM $vm -LowMemoryMappedIoSpace ([uint32]$Want.low) -ErrorAction Stop
    }
    if (Test-WinhostWanted $Want 'high') {
        Set-VM -VM $vm -HighMemoryMappedIoSpace ([uint64]$Want.high) -ErrorAction Stop
    }
    if (Test-WinhostWanted $Want 'cache') {
        Set-VM -VM $vm -GuestControlledCacheTypes ([bool]$Want.cache) -ErrorAction Stop
    }
}
