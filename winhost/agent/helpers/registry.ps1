# The registry of the machine (HKLM).
function Open-WinhostRegistry {
    param([string]$Path)
    (Open-WinhostLocalMachine).OpenSubKey($Path)
}

function Open-WinhostLocalMachine {
    # Opens the 64-bit view, even in a 32-bit process.
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
    # Writes a value. Null removes it, and the key as well if it is then empty.
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
