# key {vm: guid}   state {dynamic: bool, startup: bytes, minimum: bytes, maximum: bytes}; set: dynamic
function Get-WinhostVmMemory {
    param($Key)
    foreach ($vm in @(Find-WinhostVms $Key)) {
        $state = @{
            dynamic = [bool]$vm.DynamicMemoryEnabled
            startup = [long]$vm.MemoryStartup
            minimum = [long]$vm.MemoryMinimum
            maximum = [long]$vm.MemoryMaximum
        }
        @{ key = @{ vm = "$($vm.Id)" }; state = $state }
    }
}

function Set-WinhostVmMemory {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('dynamic')
    Assert-WinhostBoolean $Desired @('dynamic')
    $vm = Find-WinhostVm $Key
    Set-VMMemory -VM $vm -DynamicMemoryEnabled $Desired.dynamic -ErrorAction Stop
}
