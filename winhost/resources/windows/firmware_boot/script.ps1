# key {}   state {kind: uefi | bios, current: text or null, next: text or null, order: [text], entries: [{entry: text, description: text, active: bool, partition: guid or null, path: text or null}]}; set: next
function Get-WinhostFirmwareBoot {
    param($Key)
    Assert-WinhostAdministrator
    $kind = Read-WinhostFirmwareKind
    $state = @{ kind = $kind; current = $null; next = $null; order = @(); entries = @() }
    if ($kind -ceq 'uefi' -and $null -eq $Key) {
        # Reading these needs C#, and they are not needed when a whole host is read.
        foreach ($part in @('current', 'next', 'order', 'entries')) {
            $state[$part] = Read-WinhostValue { Stop-Winhost 'Winhost.NotRead' 'OperationStopped' 'Boot variables are not read with the whole host: that would start a C# compiler.' }
        }
    }
    elseif ($kind -ceq 'uefi') {
        Assert-WinhostPart 'Read-WinhostBootVariables'
        Read-WinhostBootVariables $state
    }
    @{ key = @{}; state = $state }
}

function Read-WinhostBootVariables {
    param($State)
    $State.current = Read-WinhostValue { Read-WinhostBootNumber 'BootCurrent' }
    $State.next = Read-WinhostValue { Read-WinhostBootNumber 'BootNext' }
    $State.order = Read-WinhostList { Read-WinhostBootNumbers 'BootOrder' }
    $State.entries = Read-WinhostList { Read-WinhostBootEntries }
}

function Read-WinhostBootNumbers {
    param([string]$Variable)
    $bytes = Read-WinhostFirmwareVariable $Variable $script:WinhostGlobalVariables
    if ($null -eq $bytes) {
        return
    }
    for ($offset = 0; $offset + 1 -lt $bytes.Length; $offset += 2) {
        '{0:X4}' -f [System.BitConverter]::ToUInt16($bytes, $offset)
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
        # The order may contain entries that no longer exist.
        if ($null -ne $bytes) {
            ConvertFrom-WinhostLoadOption $number $bytes
        }
    }
}

function ConvertFrom-WinhostLoadOption {
    param([string]$Number, [byte[]]$Bytes)
    # A load option consists of attributes, the length of the path, a NUL-terminated description, and the path's nodes.
    $text = ''
    $offset = 6
    while ($offset + 1 -lt $Bytes.Length -and [System.BitConverter]::ToUInt16($Bytes, $offset) -ne 0) {
        $text += [System.BitConverter]::ToChar($Bytes, $offset)
        $offset += 2
    }
    $found = @{
        entry = $Number
        description = $text
        active = ([System.BitConverter]::ToUInt32($Bytes, 0) -band 1) -eq 1
        partition = $null
        path = $null
    }
    $offset += 2
    $end = [Math]::Min($Bytes.Length, $offset + [System.BitConverter]::ToUInt16($Bytes, 4))
    while ($offset + 4 -le $end) {
        $length = [System.BitConverter]::ToUInt16($Bytes, $offset + 2)
        if ($length -lt 4 -or $offset + $length -gt $end) {
            break
        }
        Read-WinhostPathNode $Bytes $offset $length $found
        $offset += $length
    }
    $found
}

function Read-WinhostPathNode {
    param([byte[]]$Bytes, [int]$Offset, [int]$Length, $Found)
    # 4.1: a partition, by its GUID if the last byte is 2; 4.4: a file on it.
    $kind = "$($Bytes[$Offset]).$($Bytes[$Offset + 1])"
    if ($kind -ceq '4.1' -and $Length -ge 42 -and $Bytes[$Offset + 41] -eq 2) {
        $signature = New-Object -TypeName byte[] -ArgumentList 16
        [Array]::Copy($Bytes, $Offset + 24, $signature, 0, 16)
        $Found.partition = "$(New-Object -TypeName System.Guid -ArgumentList (, $signature))"
    }
    if ($kind -ceq '4.4') {
        $Found.path = [System.Text.Encoding]::Unicode.GetString($Bytes, $Offset + 4, $Length - 4).TrimEnd([char]0)
    }
}

function Set-WinhostFirmwareBoot {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('next')
    Assert-WinhostAdministrator
    Assert-WinhostPattern $Desired 'next' '\A[0-9A-F]{4}\z' 'the four digits of a boot entry'
    $next = $Desired.next
    Assert-WinhostUefi
    if ($null -eq $next) {
        $null = Invoke-WinhostProgram 'bcdedit.exe' @('/deletevalue', '{fwbootmgr}', 'bootsequence') 'Winhost.BcdRefused'
    }
    else {
        $null = Invoke-WinhostProgram 'bcdedit.exe' @('/set', '{fwbootmgr}', 'bootsequence', (Find-WinhostBcdEntry "$next")) 'Winhost.BcdRefused'
    }
    # bcdedit may report success without a change, so the variable is read back.
    $found = Read-WinhostBootNumber 'BootNext'
    if ("$found" -cne "$next") {
        Stop-Winhost 'Winhost.FirmwareForgot' 'InvalidResult' "BootNext was set to $next, and is $found."
    }
}

function Find-WinhostBcdEntry {
    param([string]$Number)
    # bcdedit uses its own ids and not the numbers, so the entry is found by its description and path.
    $entry = $null
    foreach ($each in @(Read-WinhostBootEntries)) {
        if ($each.entry -ceq $Number) {
            $entry = $each
        }
    }
    if ($null -eq $entry -or $null -eq $entry.path) {
        Stop-Winhost 'Winhost.NoSuchEntry' 'ObjectNotFound' "The firmware has no boot entry $Number that starts a file."
    }
    $ids = @(foreach ($each in @(Read-WinhostBcdEntries)) {
        $same = Test-WinhostText $each.path $entry.path 'OrdinalIgnoreCase'
        if ($same -and (Test-WinhostText $each.description $entry.description 'Ordinal')) {
            $each.id
        }
    })
    if ($ids.Count -ne 1) {
        Stop-Winhost 'Winhost.NoSuchEntry' 'ObjectNotFound' "bcdedit has $($ids.Count) entries called $($entry.description) with the path $($entry.path), and one is needed."
    }
    $ids[0]
}

function Read-WinhostBcdEntries {
    # Returns the firmware entries that bcdedit lists, with its own ids: the boot manager {fwbootmgr}, whose bootsequence
    # is started once, and the entries that can be started. The names of the fields that are read here are not localized;
    # headings and the name of the id are.
    $listed = Invoke-WinhostProgram 'bcdedit.exe' @('/enum', 'firmware') 'Winhost.BcdRefused'
    foreach ($block in @("$listed" -split '(?:\r?\n[ \t]*){2,}')) {
        $found = @{ id = ([regex]::Match($block, '\{[^{}\s]+\}')).Value; path = ''; description = ''; bootsequence = '' }
        foreach ($line in @($block -split '\r?\n')) {
            if ($line -match '\A(path|description|bootsequence)\s+(\S.*?)\s*\z') {
                $found[$Matches[1]] = $Matches[2]
            }
        }
        if ($found.id -ne '') {
            $found
        }
    }
}
