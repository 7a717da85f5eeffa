# key {}   state {kind: uefi | bios, current: text or null, next: text or null, order: [text], entries: [{entry: text, description: text, active: bool, partition: guid or null, path: text or null}]}; set: next
function Get-WinhostFirmwareBoot {
    param($Key)
    Assert-WinhostAdministrator
    $kind = Read-WinhostFirmwareKind
    $state = @{ kind = $kind; current = $null; next = $null; order = @(); entries = @() }
    if ($kind -ceq 'uefi' -and $null -eq $Key) {
        # Reading them takes C#, and nothing that reads a whole host needs them.
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
    # 4.1: a partition, by its GUID where the last byte says so; 4.4: a file on it.
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
    # bcdedit may say that it succeeded and have changed nothing: the variable tells.
    $found = Read-WinhostBootNumber 'BootNext'
    if ("$found" -cne "$next") {
        Stop-Winhost 'Winhost.FirmwareForgot' 'InvalidResult' "BootNext was set to $next, and is $found."
    }
}

function Find-WinhostBcdEntry {
    param([string]$Number)
    # bcdedit has ids of its own, and no numbers: the entry is the one with the same description and path.
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
    # What bcdedit lists of the firmware, with its own ids and no numbers: the boot manager {fwbootmgr}, of which
    # bootsequence is what is started once, and what may be started. In every language the words before what we read are
    # these; headings and the word for the id are not.
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
