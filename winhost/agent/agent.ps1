# Json {exclusive: bool, calls: [{resource, verb: get | set | send | restart, key, desired, expect, how, piece}]}   answer {answers: [...]}
# This text is constant. Values come in and go out as JSON; none ever becomes part of a script.
Set-StrictMode -Version 3.0
$ErrorActionPreference = 'Stop'
$ProgressPreference = 'SilentlyContinue'
$WarningPreference = 'Continue'
# Windows PowerShell 5.1 gives arrays a Count property, and ConvertTo-Json then writes {"value":[],"Count":0} for [].
Remove-TypeData -TypeName System.Array -ErrorAction Ignore

$script:WinhostCache = @{}

# ---- errors as data

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
        # Hyper-V's name of the error, which is not localized.
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

function ConvertTo-WinhostMissing {
    param($Fault)
    if (Test-WinhostUnavailable $Fault) {
        return @{ unavailable = $Fault.TargetObject }
    }
    @{ unknown = ConvertTo-WinhostError $Fault }
}

function Assert-WinhostPart {
    param([string[]]$Names)
    # Requires functions that only some hosts need. They are sent, with the functions that they use, when a host requests
    # them here.
    $functions = @(Get-ChildItem -Path 'Function:\' -ErrorAction Stop)
    foreach ($name in $Names) {
        if (@($functions.Name) -notcontains $name) {
            Stop-Winhost "Winhost.PartNeeded,$name" 'ResourceUnavailable' "$name was not sent with this call."
        }
    }
}

# ---- reading resources

function Read-WinhostValue {
    param([scriptblock]$Expression)
    try {
        $value = & $Expression
    }
    catch {
        return ConvertTo-WinhostMissing $_
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
        return ConvertTo-WinhostMissing $_
    }
    # The comma keeps an empty list, or a list of one item, a list.
    , $values
}

function Read-WinhostOptional {
    param([string]$NoneFound, [scriptblock]$Expression)
    # Returns the output of the expression, or nothing if it fails with the error code that means `not found`.
    try {
        & $Expression
    }
    catch {
        if ("$($_.FullyQualifiedErrorId)" -notlike $NoneFound) {
            throw
        }
    }
}

function Invoke-WinhostBestEffort {
    param([string]$What, [scriptblock]$Expression)
    # Runs an expression whose failure must not fail the change: it becomes a warning, which begins with $What.
    try {
        $null = & $Expression
    }
    catch {
        Write-Warning -Message "${What}: $($_.Exception.Message)" -ErrorAction Stop
    }
}

function Invoke-WinhostCleanup {
    param([bool]$Ended, [string]$What, [scriptblock]$Expression)
    # For finally blocks, where a new error would replace the current one. Ended: there is no current error, so that a
    # failing cleanup is an error; otherwise it becomes a warning.
    if ($Ended) {
        $null = & $Expression
        return
    }
    Invoke-WinhostBestEffort $What $Expression
}

function Read-WinhostCached {
    param([string]$Label, [scriptblock]$Expression)
    # Caches the output for this batch, until the next change. In the expression, the variables of this function hide those
    # of its caller: it must not use the same names.
    if (-not $script:WinhostCache.ContainsKey($Label)) {
        $script:WinhostCache[$Label] = @(& $Expression)
    }
    $script:WinhostCache[$Label]
}

function Read-WinhostField {
    param($Object, [string]$Name)
    if ($null -eq $Object -or $null -eq $Object.PSObject.Properties[$Name]) {
        return $null
    }
    $Object.$Name
}

function Assert-WinhostValue {
    param($Value)
    if ($null -eq $Value) {
        Stop-Winhost 'Winhost.NotExposed' 'NotImplemented' 'This Windows does not tell it.'
    }
    $Value
}

function Assert-WinhostAdministrator {
    # For other users, Windows returns a partial list as if it were complete.
    if (-not (Test-WinhostAdministrator)) {
        Stop-Winhost 'Winhost.NotAdministrator' 'PermissionDenied' 'Only an administrator can see or change this.'
    }
}

function Test-WinhostAdministrator {
    $identity = [System.Security.Principal.WindowsIdentity]::GetCurrent()
    $principal = New-Object -TypeName System.Security.Principal.WindowsPrincipal -ArgumentList $identity
    $principal.IsInRole([System.Security.Principal.WindowsBuiltInRole]::Administrator)
}

function Read-WinhostClock {
    # Monotonic seconds, which do not depend on the host's date.
    [System.Diagnostics.Stopwatch]::GetTimestamp() / [System.Diagnostics.Stopwatch]::Frequency
}

# ---- changing resources

function Assert-WinhostDesired {
    param($Desired, [string[]]$Names)
    foreach ($property in @($Desired.PSObject.Properties)) {
        if ($Names -notcontains $property.Name) {
            Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' "$($property.Name) cannot be set."
        }
    }
}

function Assert-WinhostBoolean {
    param($Desired, [string[]]$Names)
    foreach ($name in $Names) {
        if ((Test-WinhostDesired $Desired $name) -and $Desired.$name -isnot [bool]) {
            Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' "$name is true or false."
        }
    }
}

function Test-WinhostDesired {
    param($Desired, [string]$Name)
    $null -ne $Desired.PSObject.Properties[$Name]
}

function Assert-Winhost64Bit {
    if (-not [System.Environment]::Is64BitProcess) {
        Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' 'A 32-bit PowerShell sees another Windows; nothing is changed from it.'
    }
}

# ---- one call

function Find-WinhostFunction {
    param([string]$Verb, [string]$Resource)
    # Looks the resource up among the functions that this text defines. Its name is never run as a command.
    $known = $false
    foreach ($function in @(Get-ChildItem -Path 'Function:\' -ErrorAction Stop)) {
        if ($function.Name -eq "$Verb-Winhost$Resource") {
            return $function
        }
        $known = $known -or $function.Name -eq "Get-Winhost$Resource"
    }
    if (-not $known) {
        Stop-Winhost 'Winhost.UnknownNoun' 'InvalidArgument' "There is no resource $Resource."
    }
    Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' "$Resource cannot be asked to $($Verb.ToLowerInvariant())."
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
        # A partial key would match several instances, and the first of them might be changed by mistake.
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
    param([string]$Resource, $Key, $Warnings)
    $function = Find-WinhostFunction 'Get' $Resource
    if ($null -ne $Key) {
        Assert-WinhostPart 'Test-WinhostKey'
    }
    foreach ($instance in @(Invoke-WinhostFunction $function @{ Key = $Key } $Warnings)) {
        if ($null -eq $Key -or (Test-WinhostKey $Key $instance)) {
            $instance
        }
    }
}

function Read-WinhostState {
    param([string]$Resource, $Key, $Warnings)
    $instances = @(Read-WinhostInstances $Resource $Key $Warnings)
    if ($instances.Count -eq 0) {
        return $null
    }
    $instances[0].state
}

function Select-WinhostDifferences {
    param($Desired, $State)
    $differences = @{}
    if ($null -eq $Desired) {
        return $differences
    }
    foreach ($property in @($Desired.PSObject.Properties)) {
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
    $resource = "$(Read-WinhostField $Call 'resource')"
    $key = Read-WinhostField $Call 'key'
    if ($null -eq $key) {
        $instances = @(Read-WinhostInstances $resource $null $Warnings)
        return @{ ok = $true; instances = $instances; warnings = @($Warnings.texts) }
    }
    $state = Read-WinhostState $resource $key $Warnings
    @{ ok = $true; state = $state; warnings = @($Warnings.texts) }
}

function Invoke-WinhostSet {
    param($Call, $Warnings)
    Assert-Winhost64Bit
    $script:WinhostCache = @{}
    $resource = "$(Read-WinhostField $Call 'resource')"
    $key = Read-WinhostField $Call 'key'
    $desired = Read-WinhostField $Call 'desired'
    $function = Find-WinhostFunction 'Set' $resource
    if ($null -eq $key -or $null -eq $desired) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'A set says of what, and what it wants.'
    }
    $before = Read-WinhostState $resource $key $Warnings
    if ($null -eq $before) {
        Stop-Winhost 'Winhost.NotFound' 'ObjectNotFound' "There is no such $resource."
    }
    $drift = Select-WinhostDifferences (Read-WinhostField $Call 'expect') $before
    if ($drift.Count -gt 0) {
        return @{ ok = $false; drift = $drift; before = $before; warnings = @($Warnings.texts) }
    }
    $missing = Select-WinhostDifferences $desired $before
    if ($missing.Count -eq 0) {
        return @{ ok = $true; before = $before; after = $before; restart = @(); warnings = @($Warnings.texts) }
    }
    $how = Read-WinhostField $Call 'how'
    $mark = "$(Read-WinhostField $how 'mark')"
    try {
        if ($mark -cne '' -and (Test-WinhostAdministrator)) {
            Add-WinhostMark $mark
        }
        $script:WinhostCache = @{}
        $arguments = @{ Key = $key; Desired = $desired; How = $how }
        $said = @(Invoke-WinhostFunction $function $arguments $Warnings)
        # Other output of cmdlets is ignored: it must not make the change fail.
        $restart = @(foreach ($word in $said) { if ($word -is [hashtable]) { $word.restart } })
        $script:WinhostCache = @{}
        $after = Read-WinhostState $resource $key $Warnings
    }
    catch {
        $script:WinhostCache = @{}
        if (Test-WinhostUnavailable $_) {
            throw
        }
        $fault = ConvertTo-WinhostError $_
        $after = Read-WinhostStateOrNull $resource $key
        return @{ ok = $false; error = $fault; before = $before; after = $after; warnings = @($Warnings.texts) }
    }
    @{ ok = $true; before = $before; after = $after; restart = $restart; warnings = @($Warnings.texts) }
}

function Read-WinhostStateOrNull {
    param([string]$Resource, $Key)
    try {
        Read-WinhostState $Resource $Key @{ texts = @() }
    }
    catch {
        $null
    }
}

function Invoke-WinhostSend {
    param($Call, $Warnings)
    # Receives a piece of a file that a later set uses. Without a piece, returns how much of the file was received.
    Assert-Winhost64Bit
    $script:WinhostCache = @{}
    $resource = "$(Read-WinhostField $Call 'resource')"
    $key = Read-WinhostField $Call 'key'
    $function = Find-WinhostFunction 'Send' $resource
    if ($null -eq $key) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'A send says of what.'
    }
    $before = Read-WinhostState $resource $key $Warnings
    $drift = Select-WinhostDifferences (Read-WinhostField $Call 'expect') $before
    if ($drift.Count -gt 0) {
        return @{ ok = $false; drift = $drift; before = $before; warnings = @($Warnings.texts) }
    }
    $arguments = @{ Key = $key; Piece = Read-WinhostField $Call 'piece' }
    $there = @(Invoke-WinhostFunction $function $arguments $Warnings)[0]
    $script:WinhostCache = @{}
    @{ ok = $true; received = $there.received; sha256 = $there.sha256; whole = $there.whole; warnings = @($Warnings.texts) }
}

function Invoke-WinhostRestart {
    param($Call, $Warnings)
    $function = Find-WinhostFunction 'Restart' "$(Read-WinhostField $Call 'resource')"
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
            'send' {
                Invoke-WinhostSend $Call $warnings
            }
            'restart' {
                Invoke-WinhostRestart $Call $warnings
            }
            default {
                Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'The verb is get, set, send or restart.'
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
    $mutex = New-WinhostMutex
    try {
        # Waits in slices of a second, so that a stopped pipeline stops waiting.
        do {
            $taken = $mutex.WaitOne(1000)
        } until ($taken)
    }
    catch [System.Threading.AbandonedMutexException] {
        # The owner died, so this process has the mutex now. The calls read whatever state the owner left.
        $taken = $true
    }
    $mutex
}

function New-WinhostMutex {
    # Host-wide, so that this batch waits for a call that outlived its controller.
    New-Object -TypeName System.Threading.Mutex -ArgumentList $false, 'Global\winhost'
}

function Invoke-WinhostBatch {
    param($Calls)
    $failed = $false
    $culture = $null
    try {
        if ("$($ExecutionContext.SessionState.LanguageMode)" -eq 'FullLanguage') {
            # -match and -like depend on the culture: in Turkish, I is not the upper case of i.
            $thread = [System.Threading.Thread]::CurrentThread
            $culture = $thread.CurrentCulture
            $thread.CurrentCulture = [cultureinfo]::InvariantCulture
        }
        foreach ($call in $Calls) {
            $changes = "$(Read-WinhostField $call 'verb')" -ne 'get'
            if ($changes -and $failed) {
                $skipped = @{ category = 'OperationStopped'; code = 'Winhost.Skipped'; hresults = @(); cmdlet = ''; message = 'A call before it failed.' }
                @{ ok = $false; error = $skipped; warnings = @() }
                continue
            }
            $answer = Invoke-WinhostCall $call
            $failed = $failed -or ($changes -and -not $answer.ok)
            $answer
        }
    }
    finally {
        if ($null -ne $culture) {
            $thread.CurrentCulture = $culture
        }
    }
}

function Invoke-Winhost {
    param([Parameter(Mandatory = $true)][string]$Json)
    $request = ConvertFrom-Json -InputObject $Json -ErrorAction Stop
    $calls = @(Read-WinhostField $request 'calls')
    $script:WinhostCache = @{}
    $mutex = $null
    $answers = $null
    try {
        try {
            $verbs = @(foreach ($call in $calls) { "$(Read-WinhostField $call 'verb')" })
            if (@($verbs -ne 'get').Count -gt 0 -or (Read-WinhostField $request 'exclusive')) {
                Assert-WinhostPart 'Enter-WinhostMutex'
                $mutex = Enter-WinhostMutex
            }
        }
        catch {
            $why = ConvertTo-WinhostError $_
            $answers = @(foreach ($call in $calls) { @{ ok = $false; error = $why; warnings = @() } })
        }
        if ($null -eq $answers) {
            $answers = @(Invoke-WinhostBatch $calls)
        }
        ConvertTo-WinhostAscii (ConvertTo-Json -InputObject @{ answers = $answers } -Depth 10 -Compress -ErrorAction Stop)
    }
    finally {
        $script:WinhostCache = @{}
        if ($null -ne $mutex) {
            $mutex.ReleaseMutex()
            $mutex.Dispose()
        }
    }
}
