# key {socket: text}   state {name: text, manufacturer: text, cores: int, threads: int}
function Get-WinhostProcessor {
    foreach ($processor in @(Find-WinhostProcessors)) {
        $state = @{
            name = "$($processor.Name)".Trim()
            manufacturer = "$($processor.Manufacturer)"
            cores = [int]$processor.NumberOfCores
            threads = [int]$processor.NumberOfLogicalProcessors
        }
        @{ key = @{ socket = "$($processor.DeviceID)" }; state = $state }
    }
}

function Find-WinhostProcessors {
    Read-WinhostCached 'processors' { Get-CimInstance -ClassName Win32_Processor -ErrorAction Stop }
}
