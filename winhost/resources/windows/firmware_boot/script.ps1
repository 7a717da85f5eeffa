# key {}   state {kind: uefi | bios, current: text or null, next: text or null, order: [text], entries: [{entry: text, description: text, active: bool, partition: guid or null, path: text or null}]}
function Get-WinhostFirmwareBoot {
    Assert-WinhostAdministrator
    $kind = Read-WinhostFirmwareKind
    $state = @{ kind = $kind; current = $null; next = $null; order = @(); entries = @() }
    if ($kind -ceq 'uefi') {
        $state.current = Read-WinhostValue { Read-WinhostBootNumber 'BootCurrent' }
        $state.next = Read-WinhostValue { Read-WinhostBootNumber 'BootNext' }
        $state.order = Read-WinhostList { Read-WinhostBootNumbers 'BootOrder' }
        $state.entries = Read-WinhostList { Read-WinhostBootEntries }
    }
    @{ key = @{}; state = $state }
}

function Read-WinhostBootNumbers {
    param([string]$Variable)
    $bytes = Read-WinhostFirmwareVariable $Variable $script:WinhostGlobalVariables
    if ($null -eq $bytes) {
        return
    }
    for ($place = 0; $place + 1 -lt $bytes.Length; $place += 2) {
        '{0:X4}' -f [System.BitConverter]::ToUInt16($bytes, $place)
    }
}

function Read-WinhostBootNumber {
    param([string]$Variable)
    foreach ($number in @(Read-WinhostBootNumbers $Variable)) {
        return $number
    }
}

function Read-WinhostBootEntries {
    foreach ($number in @(Read-WinhostBootNumbers 'BootOrder')) {
        $bytes = Read-WinhostFirmwareVariable "Boot$number" $script:WinhostGlobalVariables
        # An order may name what is not there any more.
        if ($null -ne $bytes) {
            ConvertFrom-WinhostLoadOption $number $bytes
        }
    }
}

function ConvertFrom-WinhostLoadOption {
    param([string]$Number, [byte[]]$Bytes)
    # Attributes, the length of its path, a description that ends with NUL, then the path, node by node.
    $text = ''
    $place = 6
    while ($place + 1 -lt $Bytes.Length -and [System.BitConverter]::ToUInt16($Bytes, $place) -ne 0) {
        $text += [System.BitConverter]::ToChar($Bytes, $place)
        $place += 2
    }
    $found = @{
        entry = $Number
        description = $text
        active = ([System.BitConverter]::ToUInt32($Bytes, 0) -band 1) -eq 1
        partition = $null
        path = $null
    }
    $place += 2
    $end = [Math]::Min($Bytes.Length, $place + [System.BitConverter]::ToUInt16($Bytes, 4))
    while ($place + 4 -le $end) {
        $length = [System.BitConverter]::ToUInt16($Bytes, $place + 2)
        if ($length -lt 4 -or $place + $length -gt $end) {
            break
        }
        Read-WinhostPathNode $Bytes $place $length $found
        $place += $length
    }
    $found
}

function Read-WinhostPathNode {
    param([byte[]]$Bytes, [int]$Place, [int]$Length, $Found)
    # 4.1: a partition, by its GUID where the last byte says so; 4.4: a file on it.
    $kind = "$($Bytes[$Place]).$($Bytes[$Place + 1])"
    if ($kind -ceq '4.1' -and $Length -ge 42 -and $Bytes[$Place + 41] -eq 2) {
        $signature = New-Object -TypeName byte[] -ArgumentList 16
        [Array]::Copy($Bytes, $Place + 24, $signature, 0, 16)
        $Found.partition = "$(New-Object -TypeName System.Guid -ArgumentList (, $signature))"
    }
    if ($kind -ceq '4.4') {
        $Found.path = [System.Text.Encoding]::Unicode.GetString($Bytes, $Place + 4, $Length - 4).TrimEnd([char]0)
    }
}
