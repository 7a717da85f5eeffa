# key {account}   state {text: text or null, encoding: utf-8 | utf-8-bom | utf-16le or null}
function Get-WinhostWslConfig {
    param($Key)
    Assert-WinhostAdministrator
    foreach ($user in @(Find-WinhostAccounts)) {
        $folder = Read-WinhostProfile "$($user.SID)"
        if ($null -eq $folder) {
            continue
        }
        $found = Read-WinhostValue { Read-WinhostWslConfig $folder }
        if ($found.ContainsKey('unknown')) {
            $found = @{ text = $found; encoding = $found }
        }
        $state = @{ text = $found.text; encoding = $found.encoding }
        @{ key = @{ account = "$($user.Name)" }; state = $state }
    }
    if ($null -ne $Key) {
        # The first logon of the account creates the folder of the file.
        $none = @{ unavailable = 'AccountTasks' }
        $state = @{ text = $none; encoding = $none }
        @{ key = @{ account = "$(Read-WinhostField $Key 'account')" }; state = $state }
    }
}

function Read-WinhostWslConfig {
    param([string]$Folder)
    $bytes = Read-WinhostFile "$Folder\.wslconfig"
    if ($null -eq $bytes) {
        return @{ text = $null; encoding = $null }
    }
    ConvertFrom-WinhostBytes $bytes
}

function ConvertFrom-WinhostBytes {
    param([byte[]]$Bytes)
    # Decodes as WSL does: UTF-8 with or without a byte order mark, or UTF-16 with one. Invalid bytes are an error.
    $encoding = 'utf-8'
    if ($Bytes.Count -ge 2 -and $Bytes[0] -eq 255 -and $Bytes[1] -eq 254) {
        $encoding = 'utf-16le'
    }
    elseif ($Bytes.Count -ge 3 -and $Bytes[0] -eq 239 -and $Bytes[1] -eq 187 -and $Bytes[2] -eq 191) {
        $encoding = 'utf-8-bom'
    }
    $mark = @{ 'utf-8' = 0; 'utf-8-bom' = 3; 'utf-16le' = 2 }[$encoding]
    try {
        $text = (New-WinhostEncoding $encoding).GetString($Bytes, $mark, $Bytes.Count - $mark)
    }
    catch [System.ArgumentException] {
        Stop-Winhost 'Winhost.NotDecodable' 'InvalidData' "These bytes are not $encoding."
    }
    @{ text = $text; encoding = $encoding }
}

function ConvertTo-WinhostBytes {
    param([string]$Text, [string]$Encoding)
    $marks = @{ 'utf-8' = @(); 'utf-8-bom' = @(239, 187, 191); 'utf-16le' = @(255, 254) }
    try {
        $bytes = (New-WinhostEncoding $Encoding).GetBytes($Text)
    }
    catch [System.ArgumentException] {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' "This text cannot be written as $Encoding."
    }
    , [byte[]](@($marks[$Encoding]) + $bytes)
}

function New-WinhostEncoding {
    param([string]$Encoding)
    if ($Encoding -eq 'utf-16le') {
        return New-Object -TypeName System.Text.UnicodeEncoding -ArgumentList $false, $false, $true
    }
    New-Object -TypeName System.Text.UTF8Encoding -ArgumentList $false, $true
}

function Set-WinhostWslConfig {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('text', 'encoding')
    Assert-WinhostWslConfig $Desired
    $user = Find-WinhostAccount $Key.account
    $folder = $null
    if ($null -ne $user) {
        $folder = Read-WinhostProfile "$($user.SID)"
    }
    if ($null -eq $folder) {
        Stop-Winhost 'Winhost.Unavailable' 'ObjectNotFound' "$($Key.account) has never logged on to this host." 'AccountTasks'
    }
    $goal = Read-WinhostWslConfig $folder
    Join-WinhostDesired $goal $Desired
    if ($null -ne (Read-WinhostWslRegistry 'Version') -and (Test-WinhostJobsTask $Key.account)) {
        # A running VM has read the present file. After the change, this could no longer be determined.
        $what = "What the VM of $($Key.account) was made with could not be written down"
        Invoke-WinhostBestEffort $what { Save-WinhostVmConfig $Key.account }
    }
    $job = @{ kind = 'write'; path = "$folder\.wslconfig"; bytes = $null }
    if ($null -eq $goal.text) {
        if ((Test-WinhostDesired $Desired 'encoding') -and $null -ne $Desired.encoding) {
            Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'There is no text to encode.'
        }
    }
    else {
        if ($null -eq $goal.encoding) {
            $goal.encoding = 'utf-8'
        }
        $job.bytes = [System.Convert]::ToBase64String((ConvertTo-WinhostBytes $goal.text $goal.encoding))
    }
    # The account itself writes the file: in its profile, it could redirect other users with links.
    $null = Invoke-WinhostJob $Key.account $job 120
}

function Assert-WinhostWslConfig {
    param($Desired)
    $encoding = Read-WinhostField $Desired 'encoding'
    if ($null -ne $encoding -and @('utf-8', 'utf-8-bom', 'utf-16le') -cnotcontains $encoding) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'The encoding is utf-8, utf-8-bom or utf-16le.'
    }
    $text = Read-WinhostField $Desired 'text'
    if ($null -eq $text) {
        return
    }
    if ($text -isnot [string] -or $text.StartsWith([string][char]65279, [System.StringComparison]::Ordinal)) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'text is a string without a byte order mark; encoding says whether the file has one.'
    }
}
