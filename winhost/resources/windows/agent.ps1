# Json {exclusive: bool, calls: [{noun, verb: get | set | restart, key, want, expect, how}]}   answer {answers: [...]}
# Constant text. Values come in as JSON and go out as JSON; none ever becomes part of a script.
Set-StrictMode -Version 3.0
$ErrorActionPreference = 'Stop'
$ProgressPreference = 'SilentlyContinue'
$WarningPreference = 'Continue'
# Windows PowerShell 5.1 gives arrays a Count property, and ConvertTo-Json then writes {"value":[],"Count":0} for [].
Remove-TypeData -TypeName System.Array -ErrorAction Ignore

$script:WinhostPrograms = @('msiexec.exe', 'netsh.exe', 'nvidia-smi.exe', 'secedit.exe', 'shutdown.exe')
$script:WinhostOnce = @{}

# ---- what may go wrong, as data

function Stop-Winhost {
    param([string]$Code, [string]$Category, [string]$Message, $Target)
    $exception = New-Object -TypeName System.InvalidOperationException -ArgumentList $Message
    $fault = New-Object -TypeName System.Management.Automation.ErrorRecord -ArgumentList $exception, $Code, $Category, $Target
    throw $fault
}

function ConvertTo-WinhostError {
    param($Fault)
    $code = "$($Fault.FullyQualifiedErrorId)"
    $hresults = @()
    $exception = $Fault.Exception
    while ($null -ne $exception) {
        $hresults += '0x{0:X8}' -f $exception.HResult
        # Hyper-V says in this word, the same in every language, what its message says in the host's.
        $identifier = $exception.PSObject.Properties['ErrorIdentifier']
        if ($null -ne $identifier -and $code -notlike "*$($identifier.Value)*") {
            $code = "$code,$($identifier.Value)"
        }
        $exception = $exception.InnerException
    }
    @{
        category = "$($Fault.CategoryInfo.Category)"
        code = $code
        hresults = $hresults
        cmdlet = "$($Fault.CategoryInfo.Activity)"
        message = "$($Fault.Exception.Message)"
    }
}

function Test-WinhostUnavailable {
    param($Fault)
    "$($Fault.FullyQualifiedErrorId)" -eq 'Winhost.Unavailable'
}

# ---- what nouns read with

function Read-WinhostValue {
    param([scriptblock]$Expression)
    try {
        $value = & $Expression
    }
    catch {
        if (Test-WinhostUnavailable $_) {
            return @{ unavailable = $_.TargetObject }
        }
        return @{ unknown = ConvertTo-WinhostError $_ }
    }
    if ($null -eq $value) {
        return $null
    }
    $value
}

function Read-WinhostList {
    param([scriptblock]$Expression)
    try {
        $values = @(& $Expression)
    }
    catch {
        if (Test-WinhostUnavailable $_) {
            return @{ unavailable = $_.TargetObject }
        }
        return @{ unknown = ConvertTo-WinhostError $_ }
    }
    # The comma keeps a list of one and a list of none a list.
    , $values
}

function Read-WinhostOnce {
    param([string]$Label, [scriptblock]$Expression)
    # For this batch, and until the next change. An expression sees our names before its own: it must not use them.
    if (-not $script:WinhostOnce.ContainsKey($Label)) {
        $script:WinhostOnce[$Label] = @(& $Expression)
    }
    $script:WinhostOnce[$Label]
}

function Read-WinhostField {
    param($Object, [string]$Name)
    if ($null -eq $Object -or $null -eq $Object.PSObject.Properties[$Name]) {
        return $null
    }
    $Object.$Name
}

function Assert-WinhostKnown {
    param($Value)
    if ($null -eq $Value) {
        Stop-Winhost 'Winhost.NotExposed' 'NotImplemented' 'This Windows does not tell it.'
    }
    $Value
}

function Open-WinhostRegistry {
    param([string]$Path)
    # The 64-bit view, whatever the process is.
    $machine = [Microsoft.Win32.RegistryKey]::OpenBaseKey('LocalMachine', 'Registry64')
    $machine.OpenSubKey($Path)
}

function Read-WinhostRegistry {
    param([string]$Path, [string]$Name)
    $key = Open-WinhostRegistry $Path
    if ($null -eq $key) {
        return $null
    }
    $value = $key.GetValue($Name)
    $key.Close()
    if ($null -eq $value) {
        return $null
    }
    $value
}

function Write-WinhostRegistry {
    param([string]$Path, [string]$Name, $Value)
    # Nothing as the value takes it away, and with its last value a key of our own.
    $machine = [Microsoft.Win32.RegistryKey]::OpenBaseKey('LocalMachine', 'Registry64')
    $key = $machine.CreateSubKey($Path)
    if ($null -eq $Value) {
        $key.DeleteValue($Name, $false)
    }
    else {
        $key.SetValue($Name, $Value)
    }
    $empty = $key.ValueCount -eq 0 -and $key.SubKeyCount -eq 0
    $key.Close()
    if ($empty) {
        $machine.DeleteSubKey($Path, $false)
    }
}

function Test-WinhostRegistry {
    param([string]$Path)
    $null -ne (Open-WinhostRegistry $Path)
}

function Read-WinhostFile {
    param([string]$Path)
    # Its bytes, or nothing where there is none. A link in a folder of others could lead anywhere.
    if (-not [System.IO.File]::Exists($Path)) {
        return $null
    }
    if ([System.IO.File]::GetAttributes($Path) -band [System.IO.FileAttributes]::ReparsePoint) {
        Stop-Winhost 'Winhost.NotAFile' 'InvalidType' "$Path is a link."
    }
    , [System.IO.File]::ReadAllBytes($Path)
}

function Write-WinhostFile {
    param([string]$Path, [byte[]]$Bytes, [string]$Owner)
    # Beside it, then over it: whoever reads meanwhile sees the one or the other. Its permissions stay; owner: a SID, or
    # nothing for whoever writes.
    $beside = "$Path.$([System.Guid]::NewGuid().ToString('N')).new"
    [System.IO.File]::WriteAllBytes($beside, $Bytes)
    if ([System.IO.File]::Exists($Path)) {
        [System.IO.File]::Replace($beside, $Path, [System.Management.Automation.Language.NullString]::Value)
    }
    else {
        [System.IO.File]::Move($beside, $Path)
    }
    if ($Owner -ne '') {
        # Not by .NET alone: this cmdlet turns on the privilege that giving a file to somebody else takes.
        $acl = Get-Acl -LiteralPath $Path -ErrorAction Stop
        $acl.SetOwner((New-Object -TypeName System.Security.Principal.SecurityIdentifier -ArgumentList $Owner))
        Set-Acl -LiteralPath $Path -AclObject $acl -ErrorAction Stop
    }
}

function Remove-WinhostFile {
    param([string]$Path)
    # Whether or not it is there; Delete would want at least its folder to be.
    if ([System.IO.File]::Exists($Path)) {
        [System.IO.File]::Delete($Path)
    }
}

function Initialize-WinhostFolder {
    param([string]$Path, [string]$Who)
    # Made where it is not there, for administrators and the system. Who: 'everybody' may read in it, a SID may change
    # it too.
    $rights = 'O:BAD:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)'
    if ($Who -eq 'everybody') {
        $rights = "$rights(A;OICI;FRFX;;;AU)"
    }
    elseif ($Who -ne '') {
        $rights = "$rights(A;OICI;0x1301bf;;;$Who)"
    }
    $acl = New-Object -TypeName System.Security.AccessControl.DirectorySecurity
    $acl.SetSecurityDescriptorSddlForm($rights)
    $folder = New-Object -TypeName System.IO.DirectoryInfo -ArgumentList $Path
    if ($folder.Exists) {
        Assert-WinhostFolder $Path
        Set-Acl -LiteralPath $Path -AclObject $acl -ErrorAction Stop
        return
    }
    # With its rights at once: there is no moment in which others could put something there.
    if ("$($PSVersionTable.PSEdition)" -eq 'Core') {
        [System.IO.FileSystemAclExtensions]::Create($folder, $acl)
    }
    else {
        $folder.Create($acl)
    }
    Assert-WinhostFolder $Path
}

function Assert-WinhostFolder {
    param([string]$Path)
    # Anybody can make a folder below %ProgramData%. What they put there stays theirs whatever becomes of the folder, and
    # some of it the system would run.
    $acl = Get-Acl -LiteralPath $Path -ErrorAction Stop
    $owner = "$($acl.GetOwner([System.Security.Principal.SecurityIdentifier]))"
    $link = [System.IO.File]::GetAttributes($Path) -band [System.IO.FileAttributes]::ReparsePoint
    if ($link -or @('S-1-5-18', 'S-1-5-32-544') -notcontains $owner -or -not $acl.AreAccessRulesProtected) {
        Stop-Winhost 'Winhost.NotOurs' 'SecurityError' "winhost did not make $Path, and others may write there: look at what it holds and remove it."
    }
}

function Remove-WinhostFolder {
    param([string]$Path)
    if ([System.IO.Directory]::Exists($Path)) {
        [System.IO.Directory]::Delete($Path, $true)
    }
}

function Test-WinhostEmpty {
    param([string]$Path)
    # No such file, and no such folder with anything in it.
    if ([System.IO.File]::Exists($Path)) {
        return $false
    }
    -not [System.IO.Directory]::Exists($Path) -or @([System.IO.Directory]::GetFileSystemEntries($Path)).Count -eq 0
}

function Read-WinhostFileTime {
    param([string]$Path)
    # When it was written, in seconds of Unix; nothing where there is none.
    if (-not [System.IO.File]::Exists($Path)) {
        return $null
    }
    $epoch = New-Object -TypeName System.DateTime -ArgumentList 1970, 1, 1, 0, 0, 0, 'Utc'
    [long][Math]::Floor(([System.IO.File]::GetLastWriteTimeUtc($Path) - $epoch).TotalSeconds)
}

function Read-WinhostProgramData {
    [System.Environment]::GetFolderPath('CommonApplicationData')
}

function Read-WinhostSystemFolder {
    [System.Environment]::SystemDirectory
}

function Read-WinhostTemporary {
    # Of Windows: nobody can list it, and its name has no blank.
    "$([System.Environment]::GetFolderPath('Windows'))\Temp"
}

function Read-WinhostService {
    param([string]$Name)
    try {
        $service = Get-Service -Name $Name -ErrorAction Stop
    }
    catch {
        if ("$($_.FullyQualifiedErrorId)" -like 'NoServiceFoundForGivenName,*') {
            return 'absent'
        }
        throw
    }
    ConvertTo-WinhostWord "$($service.Status)"
}

function Test-WinhostCommand {
    param([string]$Name)
    $null -ne (Get-Command -Name $Name -ErrorAction Ignore)
}

function Join-WinhostArguments {
    param([string[]]$Arguments)
    # As programs take a command line apart again: quotes around what has blanks or is empty; backslashes double where a
    # quote follows.
    $quoted = @(foreach ($argument in $Arguments) {
        $text = $argument -replace '(\\*)"', '$1$1\"'
        if ($text -eq '' -or $text -match '[ \t]') {
            $text = '"' + ($text -replace '(\\+)\z', '$1$1') + '"'
        }
        $text
    })
    $quoted -join ' '
}

function Invoke-WinhostNative {
    param([string]$Program, [string[]]$Arguments, [int]$Seconds)
    if ($script:WinhostPrograms -notcontains $Program) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' "$Program is not among the programs that winhost runs."
    }
    $path = [System.IO.Path]::Combine([System.Environment]::SystemDirectory, $Program)
    if (-not [System.IO.File]::Exists($path)) {
        return $null
    }
    $start = New-Object -TypeName System.Diagnostics.ProcessStartInfo
    $start.FileName = $path
    $start.Arguments = Join-WinhostArguments $Arguments
    $start.UseShellExecute = $false
    $start.CreateNoWindow = $true
    $start.RedirectStandardOutput = $true
    $start.RedirectStandardError = $true
    $process = [System.Diagnostics.Process]::Start($start)
    # Both streams at once: a program that fills one while we wait for the other would hang.
    $output = $process.StandardOutput.ReadToEndAsync()
    $errors = $process.StandardError.ReadToEndAsync()
    if (-not $process.WaitForExit($Seconds * 1000)) {
        $process.Kill()
        Stop-Winhost 'Winhost.ProgramTimedOut' 'OperationTimeout' "$Program did not end within $Seconds s."
    }
    @{ code = $process.ExitCode; output = $output.Result; errors = $errors.Result }
}

function Assert-WinhostAdministrator {
    # Before asking: somebody else would be shown a part of it, as if that were all.
    if (-not (Test-WinhostAdministrator)) {
        Stop-Winhost 'Winhost.NotAdministrator' 'PermissionDenied' 'Only an administrator can see or change this.'
    }
}

function Read-WinhostClock {
    # Seconds that only ever count up, whatever is done to the host's date.
    [System.Diagnostics.Stopwatch]::GetTimestamp() / [System.Diagnostics.Stopwatch]::Frequency
}

# ---- text

function Test-WinhostText {
    param([string]$One, [string]$Other, [string]$Comparison)
    # Character by character: -eq and -ceq do not see a NUL, a soft hyphen, or a zero-width space.
    [string]::Equals($One, $Other, [System.StringComparison]$Comparison)
}

function ConvertTo-WinhostAscii {
    param([string]$Json)
    # XML cannot carry half a character or U+FFFF; as escapes of JSON they arrive, whatever encoding is on the way.
    [regex]::Replace($Json, '[^\x00-\x7f]', { param($Found) '\u{0:x4}' -f [int][char]$Found.Value })
}

# ---- words: TurnOff on the host is turn-off on the wire

function ConvertTo-WinhostWord {
    param([string]$Name)
    ($Name -creplace '(?<=[a-z])([A-Z])', '-$1').ToLowerInvariant()
}

function ConvertFrom-WinhostWord {
    param([string]$Word, [string[]]$Names)
    foreach ($name in $Names) {
        if (Test-WinhostText (ConvertTo-WinhostWord $name) $Word 'Ordinal') {
            return $name
        }
    }
    Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' "$Word is none of $($Names -join ', ')."
}

# ---- Hyper-V

function Test-WinhostHyperV {
    Read-WinhostOnce 'hyper-v' {
        $modules = @(Get-Module -ListAvailable -Name Hyper-V -ErrorAction Stop)
        $modules.Count -gt 0 -and (Read-WinhostService 'vmms') -ne 'absent'
    }
}

function Assert-WinhostHyperV {
    # A stopped service is another matter: then the cmdlets fail, and what they would tell is unknown.
    if (-not (Test-WinhostHyperV)) {
        Stop-Winhost 'Winhost.Unavailable' 'ObjectNotFound' 'Hyper-V or its PowerShell module is not there.' 'HyperVRole'
    }
}

function Find-WinhostVms {
    param($Key)
    Assert-WinhostHyperV
    $wanted = Read-WinhostField $Key 'vm'
    # Never by name: names repeat, and -Name takes wildcards. One listing serves a whole batch.
    $vms = @(Read-WinhostOnce 'vms' { Get-VM -ErrorAction Stop })
    foreach ($vm in $vms) {
        if ($null -eq $wanted -or "$($vm.Id)" -eq $wanted) {
            $vm
        }
    }
}

function Find-WinhostVm {
    param($Key)
    $vms = @(Find-WinhostVms $Key)
    if ($vms.Count -ne 1) {
        Stop-Winhost 'Winhost.NotFound' 'ObjectNotFound' "There is no VM $($Key.vm)."
    }
    $vms[0]
}

# ---- what nouns change with

function Assert-WinhostWant {
    param($Want, [string[]]$Names)
    foreach ($property in @($Want.PSObject.Properties)) {
        if ($Names -notcontains $property.Name) {
            Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' "$($property.Name) cannot be set."
        }
    }
}

function Test-WinhostWanted {
    param($Want, [string]$Name)
    $null -ne $Want.PSObject.Properties[$Name]
}

function Test-WinhostAccepted {
    param($How, [string]$Risk)
    @(Read-WinhostField $How 'accept') -contains $Risk
}

# ---- one call

function Find-WinhostFunction {
    param([string]$Verb, [string]$Noun)
    # The noun is only looked up among the functions that this text defines; it never becomes a command's name.
    $known = $false
    foreach ($function in @(Get-ChildItem -Path 'Function:\' -ErrorAction Stop)) {
        if ($function.Name -eq "$Verb-Winhost$Noun") {
            return $function
        }
        $known = $known -or $function.Name -eq "Get-Winhost$Noun"
    }
    if (-not $known) {
        Stop-Winhost 'Winhost.UnknownNoun' 'InvalidArgument' "There is no noun $Noun."
    }
    Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' "$Noun cannot be asked to $($Verb.ToLowerInvariant())."
}

function Invoke-WinhostFunction {
    param($Function, $Arguments, $Warnings)
    & $Function @Arguments 3>&1 | ForEach-Object -Process {
        if ($_ -is [System.Management.Automation.WarningRecord]) {
            $Warnings.texts += "$_"
        }
        else {
            $_
        }
    }
}

function Test-WinhostKey {
    param($Key, $Instance)
    $parts = @($Key.PSObject.Properties)
    $whole = $parts.Count -eq $Instance.key.Count
    foreach ($name in $Instance.key.Keys) {
        $whole = $whole -and $null -ne $Key.PSObject.Properties[$name]
    }
    if (-not $whole) {
        # Half a key would name several things; changing the first of them is not what anybody asked for.
        $names = @($Instance.key.Keys | Sort-Object) -join ', '
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' "The key is $names."
    }
    foreach ($part in $parts) {
        if (-not (Test-WinhostText $Instance.key[$part.Name] $part.Value 'OrdinalIgnoreCase')) {
            return $false
        }
    }
    $true
}

function Read-WinhostInstances {
    param([string]$Noun, $Key, $Warnings)
    $function = Find-WinhostFunction 'Get' $Noun
    foreach ($instance in @(Invoke-WinhostFunction $function @{ Key = $Key } $Warnings)) {
        if ($null -eq $Key -or (Test-WinhostKey $Key $instance)) {
            $instance
        }
    }
}

function Read-WinhostState {
    param([string]$Noun, $Key, $Warnings)
    $instances = @(Read-WinhostInstances $Noun $Key $Warnings)
    if ($instances.Count -eq 0) {
        return $null
    }
    $instances[0].state
}

function Select-WinhostDifferences {
    param($Wanted, $State)
    $differences = @{}
    if ($null -eq $Wanted) {
        return $differences
    }
    foreach ($property in @($Wanted.PSObject.Properties)) {
        if (-not $State.ContainsKey($property.Name)) {
            Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' "There is no property $($property.Name)."
        }
        $expected = ConvertTo-Json -InputObject @{ value = $property.Value } -Depth 10 -Compress -ErrorAction Stop
        $found = ConvertTo-Json -InputObject @{ value = $State[$property.Name] } -Depth 10 -Compress -ErrorAction Stop
        if (-not (Test-WinhostText $expected $found 'Ordinal')) {
            $differences[$property.Name] = @{ expected = $property.Value; found = $State[$property.Name] }
        }
    }
    $differences
}

function Invoke-WinhostGet {
    param($Call, $Warnings)
    $noun = "$(Read-WinhostField $Call 'noun')"
    $key = Read-WinhostField $Call 'key'
    if ($null -eq $key) {
        $instances = @(Read-WinhostInstances $noun $null $Warnings)
        return @{ ok = $true; instances = $instances; warnings = @($Warnings.texts) }
    }
    $state = Read-WinhostState $noun $key $Warnings
    @{ ok = $true; state = $state; warnings = @($Warnings.texts) }
}

function Invoke-WinhostSet {
    param($Call, $Warnings)
    if (-not [System.Environment]::Is64BitProcess) {
        Stop-Winhost 'Winhost.WrongPlace' 'InvalidOperation' 'A 32-bit PowerShell sees another Windows; nothing is changed from it.'
    }
    $script:WinhostOnce = @{}
    $noun = "$(Read-WinhostField $Call 'noun')"
    $key = Read-WinhostField $Call 'key'
    $want = Read-WinhostField $Call 'want'
    $function = Find-WinhostFunction 'Set' $noun
    if ($null -eq $key -or $null -eq $want) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'A set says of what, and what it wants.'
    }
    $before = Read-WinhostState $noun $key $Warnings
    if ($null -eq $before) {
        Stop-Winhost 'Winhost.NotFound' 'ObjectNotFound' "There is no such $noun."
    }
    $drift = Select-WinhostDifferences (Read-WinhostField $Call 'expect') $before
    if ($drift.Count -gt 0) {
        return @{ ok = $false; drift = $drift; before = $before; warnings = @($Warnings.texts) }
    }
    $missing = Select-WinhostDifferences $want $before
    if ($missing.Count -eq 0) {
        return @{ ok = $true; before = $before; after = $before; restart = @(); warnings = @($Warnings.texts) }
    }
    try {
        $script:WinhostOnce = @{}
        $arguments = @{ Key = $key; Want = $want; How = Read-WinhostField $Call 'how' }
        $said = @(Invoke-WinhostFunction $function $arguments $Warnings)
        $restart = @(foreach ($word in $said) { $word.restart })
        $script:WinhostOnce = @{}
        $after = Read-WinhostState $noun $key $Warnings
    }
    catch {
        $script:WinhostOnce = @{}
        if (Test-WinhostUnavailable $_) {
            throw
        }
        $fault = ConvertTo-WinhostError $_
        $after = Read-WinhostAgain $noun $key
        return @{ ok = $false; error = $fault; before = $before; after = $after; warnings = @($Warnings.texts) }
    }
    @{ ok = $true; before = $before; after = $after; restart = $restart; warnings = @($Warnings.texts) }
}

function Read-WinhostAgain {
    param([string]$Noun, $Key)
    try {
        Read-WinhostState $Noun $Key @{ texts = @() }
    }
    catch {
        $null
    }
}

function Invoke-WinhostRestart {
    param($Call, $Warnings)
    $function = Find-WinhostFunction 'Restart' "$(Read-WinhostField $Call 'noun')"
    $said = @(Invoke-WinhostFunction $function @{} $Warnings)
    @{ ok = $true; restart = @(foreach ($word in $said) { $word.restart }); warnings = @($Warnings.texts) }
}

function Invoke-WinhostCall {
    param($Call)
    $warnings = @{ texts = @() }
    try {
        switch ("$(Read-WinhostField $Call 'verb')") {
            'get' {
                Invoke-WinhostGet $Call $warnings
            }
            'set' {
                Invoke-WinhostSet $Call $warnings
            }
            'restart' {
                Invoke-WinhostRestart $Call $warnings
            }
            default {
                Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'The verb is get, set or restart.'
            }
        }
    }
    catch {
        if (Test-WinhostUnavailable $_) {
            @{ ok = $false; unavailable = $_.TargetObject }
        }
        else {
            @{ ok = $false; error = ConvertTo-WinhostError $_; warnings = @($warnings.texts) }
        }
    }
}

# ---- a batch

function Enter-WinhostMutex {
    # Host-wide: a call that outlived its controller still holds it, and is waited for instead of raced.
    $mutex = New-Object -TypeName System.Threading.Mutex -ArgumentList $false, 'Global\winhost'
    try {
        # In slices, so that a stopped pipeline stops waiting.
        do {
            $taken = $mutex.WaitOne(1000)
        } until ($taken)
    }
    catch [System.Threading.AbandonedMutexException] {
        # Its holder died, and it is ours now; what was left half done is what the calls read next.
        $taken = $true
    }
    $mutex
}

function Invoke-WinhostBatch {
    param($Calls)
    $failed = $false
    foreach ($call in $Calls) {
        $changes = "$(Read-WinhostField $call 'verb')" -ne 'get'
        if ($changes -and $failed) {
            $skipped = @{ category = 'OperationStopped'; code = 'Winhost.Skipped'; hresults = @(); cmdlet = ''; message = 'A call before it failed.' }
            @{ ok = $false; error = $skipped; warnings = @() }
            continue
        }
        $answer = Invoke-WinhostCall $call
        if ($changes -and -not $answer.ok) {
            $failed = $true
        }
        $answer
    }
}

function Deny-WinhostBatch {
    param($Calls, $Fault)
    foreach ($call in $Calls) {
        @{ ok = $false; error = ConvertTo-WinhostError $Fault; warnings = @() }
    }
}

function Test-WinhostExclusive {
    param($Request, $Calls)
    foreach ($call in $Calls) {
        if ("$(Read-WinhostField $call 'verb')" -ne 'get') {
            return $true
        }
    }
    [bool](Read-WinhostField $Request 'exclusive')
}

function Invoke-Winhost {
    param([Parameter(Mandatory = $true)][string]$Json)
    $request = ConvertFrom-Json -InputObject $Json -ErrorAction Stop
    $calls = @(Read-WinhostField $request 'calls')
    $script:WinhostOnce = @{}
    $mutex = $null
    $denied = $null
    try {
        try {
            if (Test-WinhostExclusive $request $calls) {
                $mutex = Enter-WinhostMutex
            }
        }
        catch {
            $denied = $_
        }
        if ($null -ne $denied) {
            $answers = @(Deny-WinhostBatch $calls $denied)
        }
        else {
            $answers = @(Invoke-WinhostBatch $calls)
        }
        ConvertTo-WinhostAscii (ConvertTo-Json -InputObject @{ answers = $answers } -Depth 10 -Compress -ErrorAction Stop)
    }
    finally {
        $script:WinhostOnce = @{}
        if ($null -ne $mutex) {
            $mutex.ReleaseMutex()
            $mutex.Dispose()
        }
    }
}
