# The registry of the machine: what resources read there, and the few values that winhost writes.
function Open-WinhostRegistry {
    param([string]$Path)
    (Open-WinhostLocalMachine).OpenSubKey($Path)
}

function Open-WinhostLocalMachine {
    # The 64-bit view, whatever the process is.
    [Microsoft.Win32.RegistryKey]::OpenBaseKey('LocalMachine', 'Registry64')
}

function Read-WinhostRegistry {
    param([string]$Path, [string]$Name)
    $key = Open-WinhostRegistry $Path
    if ($null -eq $key) {
        return $null
    }
    $data = $key.GetValue($Name)
    $key.Close()
    $data
}

function Write-WinhostRegistry {
    param([string]$Path, [string]$Name, $Data)
    # Null removes the value, and a key of ours with its last value.
    $machine = Open-WinhostLocalMachine
    $key = $machine.CreateSubKey($Path)
    if ($null -eq $Data) {
        $key.DeleteValue($Name, $false)
    }
    else {
        $key.SetValue($Name, $Data)
    }
    $empty = $key.ValueCount -eq 0 -and $key.SubKeyCount -eq 0
    $key.Close()
    if ($empty) {
        $machine.DeleteSubKey($Path, $false)
    }
}

function Test-WinhostRegistry {
    param([string]$Path)
    $key = Open-WinhostRegistry $Path
    if ($null -eq $key) {
        return $false
    }
    $key.Close()
    $true
}
