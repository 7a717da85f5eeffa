# sums, text, and how it ends

# 0 done, 1 failure, 2 wrong usage or a missing consent, 4 the host is not as planned, 3010 a restart is needed.
$script:WinhostCode = 0

function Assert-WinhostUsage {
    # Back to the folder in which PowerShell was before this was loaded: paths in parameters are relative to it.
    try {
        $null = $ExecutionContext.SessionState.Path.PopLocation('winhost')
    }
    catch {
        Stop-WinhostScript 2 'NoFolder' 'the folder that this PowerShell was in does not exist any more' "$($_.Exception.Message) Nothing was done." 'Go to a folder that exists, as with: cd C:\. Then run the script again, by its whole path.'
    }
    # PowerShell itself would exit with 1, as after a failure.
    if ($script:Unknown.Count -gt 0) {
        Stop-WinhostScript 2 'Usage' "there is no parameter for: $($script:Unknown -join ' ')" 'Nothing was done.' 'Get-Help shows those that there are, with -Detailed.'
    }
}

function Assert-WinhostSums {
    param([string]$Folder, [string[]]$Needed)
    $sums = Read-WinhostSums $Folder
    foreach ($name in @($sums.Keys) + $Needed) {
        $path = Join-WinhostPath $Folder $name
        $there = $sums.ContainsKey($name) -and [System.IO.File]::Exists($path)
        if (-not $there -or (ConvertTo-WinhostDigest ([System.IO.File]::ReadAllBytes($path))) -cne $sums[$name]) {
            Stop-WinhostScript 2 'Changed' "$name is not as SHA256SUMS says" 'It was changed, or lost, since the bundle was made. Nothing was done.' 'Copy the whole folder again, or make the bundle again.'
        }
    }
}

function Read-WinhostSums {
    param([string]$Folder)
    $path = Join-WinhostPath $Folder 'SHA256SUMS'
    if (-not [System.IO.File]::Exists($path)) {
        Stop-WinhostScript 2 'Changed' "there is no SHA256SUMS in $Folder" 'Nothing was done.' 'Copy the whole folder again.'
    }
    $sums = @{}
    foreach ($line in [System.IO.File]::ReadAllLines($path)) {
        if ($line -cnotmatch '^([0-9a-f]{64})  (.+)$' -or $script:WinhostFiles -cnotcontains $Matches[2]) {
            Stop-WinhostScript 2 'Changed' "SHA256SUMS has a line that is not winhost's: $line" 'Nothing was done.' 'Copy the whole folder again.'
        }
        $sums[$Matches[2]] = $Matches[1]
    }
    $sums
}

function Join-WinhostPath {
    param([string]$Folder, [string]$Name)
    [System.IO.Path]::Combine($Folder, $Name)
}

function ConvertTo-WinhostText {
    param($Document)
    # ASCII is the same in all encodings of consoles and redirections.
    ConvertTo-WinhostAscii (ConvertTo-Json -InputObject $Document -Depth 12 -Compress -ErrorAction Stop)
}

function ConvertTo-WinhostVisible {
    param([string]$Text)
    # Escapes characters that a console would interpret, hide or reorder.
    [regex]::Replace($Text, '[\p{C}\p{Z}-[ ]]', { param($Found) '\u{0:x4}' -f [int][char]$Found.Value })
}

function Stop-WinhostScript {
    param([int]$Code, [string]$Kind, [string]$Message, [string[]]$Meaning, [string]$Hint)
    $ending = @{ exit_code = $Code; kind = $Kind; what = $Message; meaning = $Meaning; hint = $Hint }
    Stop-Winhost "Winhost.$Kind" 'InvalidOperation' $Message $ending
}

function ConvertTo-WinhostFailure {
    param($Fault)
    # Returns an error as lines for people and as a document.
    $ending = $Fault.TargetObject
    if ($ending -isnot [hashtable] -or -not $ending.ContainsKey('exit_code')) {
        $ending = @{ exit_code = 1; kind = 'Failure'; what = "$($Fault.Exception.Message)"; meaning = "$($Fault.FullyQualifiedErrorId)"; hint = '' }
    }
    $lines = @("error: $($ending.what)")
    foreach ($line in @($ending.meaning) + $ending.hint) {
        if ($line -ne '') {
            $lines += "  $line"
        }
    }
    $document = [ordered]@{
        kind = $ending.kind
        exit_code = $ending.exit_code
        what = $ending.what
        meaning = @($ending.meaning) -join "`n"
        hint = $ending.hint
    }
    @{ exit_code = $ending.exit_code; document = @{ error = $document }; lines = $lines }
}
