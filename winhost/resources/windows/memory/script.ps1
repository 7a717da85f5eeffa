# key {}   state {total: bytes, free: bytes}
function Get-WinhostMemory {
    $machine = Get-CimInstance -ClassName Win32_ComputerSystem -ErrorAction Stop
    $system = Get-CimInstance -ClassName Win32_OperatingSystem -ErrorAction Stop
    $state = @{
        total = [long]$machine.TotalPhysicalMemory
        # This value is in KiB, the other one in bytes.
        free = [long]$system.FreePhysicalMemory * 1024
    }
    @{ key = @{}; state = $state }
}
