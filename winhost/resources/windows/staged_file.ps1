# key {sha256: text, name: text, source: https address or path}   state {present: bool}; set: present
$script:WinhostRecord = 'SOFTWARE\winhost'

function Get-WinhostStagedFile {
    param($Key)
    # Whoever may not look into the folder would take everything for absent.
    Assert-WinhostAdministrator
    foreach ($file in @(Find-WinhostStagedFiles "$(Read-WinhostField $Key 'sha256')")) {
        @{ key = @{ sha256 = $file.sha256; name = $file.name; source = $file.source }; state = @{ present = $true } }
    }
    if ($null -ne $Key) {
        $sha256 = Read-WinhostField $Key 'sha256'
        $name = Read-WinhostField $Key 'name'
        $source = Read-WinhostField $Key 'source'
        @{ key = @{ sha256 = $sha256; name = $name; source = $source }; state = @{ present = $false } }
    }
}

function Find-WinhostStagedFiles {
    param([string]$Sha256)
    # Those that winhost brought and that still are what they were; of one hash, or of every one.
    $record = Open-WinhostRegistry $script:WinhostRecord
    if ($null -eq $record) {
        return
    }
    foreach ($entry in @($record.GetValueNames() | Sort-Object)) {
        if ($entry -cnotmatch '^file ([0-9a-f]{64})-([A-Za-z0-9._-]+)\z') {
            continue
        }
        $file = @{ sha256 = $Matches[1]; name = $Matches[2]; source = "$($record.GetValue($entry))" }
        $asked = $Sha256 -eq '' -or (Test-WinhostText $Sha256 $file.sha256 'OrdinalIgnoreCase')
        if ($asked -and (Read-WinhostHash (Join-WinhostStagedPath $file)) -eq $file.sha256) {
            $file
        }
    }
    $record.Close()
}

function Find-WinhostStagedFile {
    param([string]$Sha256)
    # For what is done with a file: its path, as long as it still is what it was.
    foreach ($file in @(Find-WinhostStagedFiles $Sha256)) {
        return Join-WinhostStagedPath $file
    }
    Stop-Winhost 'Winhost.NotStaged' 'ObjectNotFound' "No file with SHA-256 $Sha256 was brought to this host."
}

function Join-WinhostStagedPath {
    param($File)
    "$(Read-WinhostProgramData)\winhost\files\$($File.sha256)-$($File.name)"
}

function Set-WinhostStagedFile {
    param($Key, $Want, $How)
    Assert-WinhostWant $Want @('present')
    Assert-WinhostStagedKey $Key
    if ($Want.present -isnot [bool]) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'present is true or false.'
    }
    $path = Join-WinhostStagedPath $Key
    $entry = "file $($Key.sha256)-$($Key.name)"
    if (-not $Want.present) {
        Remove-WinhostFile $path
        Write-WinhostRegistry $script:WinhostRecord $entry $null
        return
    }
    # Administrators alone write there; the account that imports a distro from it reads.
    Initialize-WinhostFolder "$(Read-WinhostProgramData)\winhost" ''
    Initialize-WinhostFolder "$(Read-WinhostProgramData)\winhost\files" 'everybody'
    Receive-WinhostFile $Key $path
    Write-WinhostRegistry $script:WinhostRecord $entry $Key.source
}

function Assert-WinhostStagedKey {
    param($Key)
    $fits = "$($Key.sha256)" -cmatch '^[0-9a-f]{64}\z'
    $fits = $fits -and "$($Key.name)" -cmatch '^[A-Za-z0-9._-]{0,99}[A-Za-z0-9_-]\z'
    $address = '^https://[A-Za-z0-9.:\[\]-]+/[!-~]+\z'
    $local = '^[A-Za-z]:\\[^\x00-\x1f"*/:<>?|]+\z'
    if (-not $fits -or ("$($Key.source)" -cnotmatch $address -and "$($Key.source)" -cnotmatch $local)) {
        $why = 'sha256 is 64 digits in lower case, name of plain characters, source an https address or a path on a drive.'
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' $why
    }
}

function Receive-WinhostFile {
    param($Key, [string]$Path)
    # Beside it, and only what has the right sum gets the name. What stood there is never trusted, nor kept.
    $beside = "$Path.part"
    Remove-WinhostFile $beside
    try {
        $found = Copy-WinhostSource $Key.source $beside
    }
    catch {
        $why = $_.Exception.GetBaseException().Message
        Remove-WinhostFile $beside
        Stop-Winhost 'Winhost.NotFetched' 'ReadError' "It could not be fetched: $why"
    }
    if ($found -ne $Key.sha256) {
        Remove-WinhostFile $beside
        Stop-Winhost 'Winhost.WrongHash' 'InvalidData' "The source gave SHA-256 $found, and not $($Key.sha256)."
    }
    Remove-WinhostFile $Path
    Move-WinhostFile $beside $Path
}

# ---- bytes: what reaches past cmdlets

function Read-WinhostHash {
    param([string]$Path)
    if (-not [System.IO.File]::Exists($Path)) {
        return ''
    }
    # This one is of Windows itself, also where its policy (FIPS) forbids those that .NET brings.
    $sha256 = New-Object -TypeName System.Security.Cryptography.SHA256CryptoServiceProvider
    $stream = [System.IO.File]::OpenRead($Path)
    try {
        $sum = $sha256.ComputeHash($stream)
    }
    finally {
        $stream.Dispose()
        $sha256.Dispose()
    }
    [System.BitConverter]::ToString($sum).Replace('-', '').ToLowerInvariant()
}

function Copy-WinhostSource {
    param([string]$Source, [string]$Path)
    # In pieces, because it is larger than memory should hold; gives the sum of what came.
    $from = Open-WinhostSource $Source
    try {
        $to = [System.IO.File]::Open($Path, 'CreateNew', 'Write', 'None')
        try {
            $from.CopyTo($to)
        }
        finally {
            $to.Dispose()
        }
    }
    finally {
        $from.Dispose()
    }
    Read-WinhostHash $Path
}

function Open-WinhostSource {
    param([string]$Source)
    if ($Source -cnotlike 'https://*') {
        return [System.IO.File]::Open($Source, 'Open', 'Read', 'Read')
    }
    # Not every Windows PowerShell asks for it by itself. No credentials are sent, neither to a server nor to a proxy.
    [System.Net.ServicePointManager]::SecurityProtocol = 'Tls12'
    $request = [System.Net.WebRequest]::Create($Source)
    $request.Timeout = 60000
    $request.ReadWriteTimeout = 60000
    $response = $request.GetResponse()
    if ($response.ResponseUri.Scheme -ne 'https') {
        $response.Dispose()
        Stop-Winhost 'Winhost.NotFetched' 'SecurityError' "It leads to $($response.ResponseUri.Scheme), away from https."
    }
    $response.GetResponseStream()
}

function Move-WinhostFile {
    param([string]$Path, [string]$Target)
    [System.IO.File]::Move($Path, $Target)
}
