# the plan, and the host as it is

function Open-WinhostPlan {
    param([string]$Script)
    $script:WinhostPlanFolder = $PSScriptRoot
    $script:WinhostShowsProgress = -not $script:Json
    Assert-WinhostSums $PSScriptRoot @($Script, 'Winhost.ps1', 'plan.json')
    $bytes = [System.IO.File]::ReadAllBytes((Join-WinhostPath $PSScriptRoot 'plan.json'))
    $plan = ConvertFrom-WinhostPlan $bytes
    # A plan for a bundle has one stage. Its deferred resources are planned later, from new facts.
    $stage = @($plan.stages)[0]
    $linux = @(foreach ($step in @($stage.steps)) { if ($script:WinhostLinux -ccontains $step.resource) { $step } })
    foreach ($name in @('desired', 'steps')) {
        $stage.$name = @(foreach ($each in @($stage.$name)) { if ($script:WinhostLinux -cnotcontains $each.resource) { $each } })
    }
    @{ plan = $plan; stage = $stage; linux = $linux.Count; sum = (ConvertTo-WinhostDigest $bytes).Substring(0, 16); script = $Script }
}

function ConvertFrom-WinhostPlan {
    param([byte[]]$Bytes)
    # An editor may write a byte order mark, with which PowerShell would not parse the JSON.
    $text = [System.Text.Encoding]::UTF8.GetString($Bytes).TrimStart([char]0xfeff)
    $plan = $null
    $why = 'is empty'
    if ($text.Trim() -cne '') {
        try {
            $plan = ConvertFrom-Json -InputObject $text -ErrorAction Stop
            $why = "has the schema $(Read-WinhostField $plan 'schema'), not winhost.plan/3"
        }
        catch {
            $why = "is no JSON: $($_.Exception.Message)"
        }
    }
    if ("$(Read-WinhostField $plan 'schema')" -cne 'winhost.plan/3') {
        Stop-WinhostScript 2 'WrongDocument' "plan.json $why" 'Nothing was done.' 'Make the bundle again with this winhost.'
    }
    $plan
}

function Assert-WinhostHost {
    param($Plan, [bool]$Changes)
    $session = Read-WinhostSingle 'Session'
    $machine = ConvertTo-WinhostDisplayText (Read-WinhostSingle 'OperatingSystem').machine_id
    if (-not [string]::Equals($machine, $Plan.machine_id)) {
        Stop-WinhostScript 2 'WrongHost' "this is not the machine that was planned for: its id is $machine, not $($Plan.machine_id)" 'Nothing was changed.' 'Read this one with Facts.ps1 and plan for it.'
    }
    if (-not $Changes) {
        return
    }
    if (-not (Test-WinhostSame $session.administrator $true)) {
        Stop-WinhostScript 2 'NotAdministrator' 'this needs an administrator' 'Nothing was changed.' 'Start Windows PowerShell with "Run as administrator".'
    }
    if (-not (Test-WinhostSame $session.is_64bit $true)) {
        Stop-WinhostScript 2 'WrongPowerShell' 'this is a 32-bit PowerShell, which sees another Windows' 'Nothing was changed.' 'Start the one that is not called (x86).'
    }
}

# ---- reading, by the agent's answers as over a connection

function Invoke-WinhostRequest {
    param($Calls, [bool]$Settled)
    # Settled: after a running change, perhaps of another window or a controller, has ended.
    $request = ConvertTo-Json -InputObject @{ exclusive = $Settled; calls = @($Calls) } -Depth 10 -Compress -ErrorAction Stop
    $answer = ConvertFrom-Json -InputObject (Invoke-Winhost -Json $request) -ErrorAction Stop
    foreach ($each in $answer.answers) {
        $each
    }
}

function Read-WinhostSingle {
    param([string]$Resource)
    $answer = Invoke-WinhostRequest @(@{ resource = $Resource; verb = 'get'; key = @{} }) $false
    if (-not $answer.ok) {
        Stop-WinhostScript 1 'CannotRead' "$Resource cannot be read: $(ConvertTo-WinhostFaultText $answer)" '' ''
    }
    $answer.state
}

function Read-WinhostHost {
    # Reads all resources that can be changed. Returns the agent's answers by resource.
    $names = @(foreach ($resource in $script:WinhostResources) { if ($resource.sets) { $resource.name } })
    $answers = @(Invoke-WinhostRequest @(foreach ($name in $names) { @{ resource = $name; verb = 'get' } }) $true)
    $facts = @{}
    for ($number = 0; $number -lt $names.Count; $number++) {
        $facts[$names[$number]] = $answers[$number]
    }
    $facts
}

function Show-WinhostWslAccounts {
    param($Facts)
    # WSL can be read only as the account that owns it: reading runs a task of that account, which logs it on.
    if ($Facts['AccountTasks'].ok) {
        foreach ($found in @($Facts['AccountTasks'].instances)) {
            if (@('ready', 'stale') -ccontains $found.state.jobs) {
                Show-WinhostLine "  Read as $($found.key.account), too: its task for jobs ran, which logs it on and has a file for each job in %ProgramData%\winhost\jobs meanwhile."
            }
        }
    }
}

function Find-WinhostResource {
    param([string]$Name)
    foreach ($resource in $script:WinhostResources) {
        if ($resource.name -ceq $Name -and $resource.sets) {
            return $resource
        }
    }
    Stop-WinhostScript 2 'NotAPlan' "the plan wants what no resource of this winhost can be: $Name" 'Nothing was changed.' 'Make the plan again with this winhost.'
}

function ConvertTo-WinhostTitle {
    param([string]$Name)
    # The title of a resource for people.
    foreach ($resource in $script:WinhostResources) {
        if ($resource.name -ceq $Name) {
            return $resource.title
        }
    }
    $Name
}

function Find-WinhostState {
    param($Facts, [string]$Resource, $Key)
    # The state of an instance; that of an absent one if it can be created, else null.
    $answer = $Facts[(Find-WinhostResource $Resource).name]
    if (-not $answer.ok) {
        Stop-WinhostScript 1 'CannotRead' "$(ConvertTo-WinhostTitle $Resource) cannot be read: $(ConvertTo-WinhostFaultText $answer)" 'What cannot be read is not changed.' ''
    }
    $id = ConvertTo-WinhostId $Resource $Key
    foreach ($instance in @($answer.instances)) {
        if ([string]::Equals((ConvertTo-WinhostId $Resource $instance.key), $id)) {
            return $instance.state
        }
    }
    $absent = (Find-WinhostResource $Resource).absent
    if ($absent -cne '') {
        ConvertFrom-Json -InputObject $absent -ErrorAction Stop
    }
}

function ConvertTo-WinhostId {
    param([string]$Resource, $Key)
    # The parts of a key have no fixed order.
    $parts = @(foreach ($part in @($Key.PSObject.Properties)) { "$($part.Name)=$($part.Value)" })
    "$Resource $((@($parts | Sort-Object) -join ' '))"
}

function ConvertTo-WinhostFaultText {
    param($Answer)
    # The reason why an answer or a property is missing.
    $until = Read-WinhostField $Answer 'unavailable'
    if ($null -ne $until) {
        return "$(ConvertTo-WinhostTitle $until) has to be there first"
    }
    $fault = Read-WinhostField $Answer 'error'
    if ($null -eq $fault) {
        $fault = $Answer.unknown
    }
    "$($fault.message) [$($fault.code)]"
}

# ---- checks

function Read-WinhostProperty {
    param($Object, [string]$Name)
    # The value of a property. The comma keeps lists of one or no element as lists.
    if ($null -ne $Object -and $null -ne $Object.PSObject.Properties[$Name]) {
        return , $Object.$Name
    }
    # An explicit null: Windows PowerShell 5.1 would write no value in a table as {}.
    $null
}

function Test-WinhostSame {
    param($One, $Other)
    $first = ConvertTo-Json -InputObject @{ it = $One } -Depth 10 -Compress -ErrorAction Stop
    $second = ConvertTo-Json -InputObject @{ it = $Other } -Depth 10 -Compress -ErrorAction Stop
    # An ordinal comparison: -ceq ignores a NUL or a zero-width space.
    [string]::Equals($first, $second)
}

function Test-WinhostGoals {
    param($Goals, $Facts)
    # A check for each desired property. found: its present value, or a sentence that says why there is none.
    foreach ($goal in @($Goals)) {
        $answer = $Facts[(Find-WinhostResource $goal.resource).name]
        $now = $null
        $why = 'it is not there any more'
        if ($answer.ok) {
            $now = Find-WinhostState $Facts $goal.resource $goal.key
        }
        else {
            $why = ConvertTo-WinhostFaultText $answer
        }
        foreach ($property in @($goal.desired.PSObject.Properties)) {
            $found = $why
            if ($null -ne $now) {
                $found = Read-WinhostProperty $now $property.Name
            }
            $holds = $null -ne $now -and (Test-WinhostSame $found $property.Value)
            [ordered]@{ title = $goal.title; resource = $goal.resource; property = $property.Name; desired = $property.Value; found = $found; holds = $holds }
        }
    }
}

function Test-WinhostAnyFailed {
    param($Checks)
    foreach ($check in $Checks) {
        if (-not $check.holds) {
            return $true
        }
    }
    $false
}

# ---- output

function ConvertTo-WinhostCheckLines {
    param($Checks, [bool]$All)
    foreach ($check in $Checks) {
        if (-not $check.holds) {
            "  NOT SO  $($check.title): $($check.property) should be $(ConvertTo-WinhostDisplayText $check.desired), is $(ConvertTo-WinhostDisplayText $check.found)"
        }
        elseif ($All) {
            "  ok      $($check.title): $($check.property) is $(ConvertTo-WinhostDisplayText $check.desired)"
        }
    }
}

function ConvertTo-WinhostDisplayText {
    param($Item)
    if ($null -eq $Item) {
        return 'none'
    }
    if ($Item -is [bool]) {
        return @('no', 'yes')[[int]$Item]
    }
    if ($Item -is [string]) {
        return $Item
    }
    if ($Item -is [ValueType]) {
        if ($Item -ge 1073741824 -and $Item % 1073741824 -eq 0) {
            return "$($Item / 1073741824) GiB"
        }
        if ($Item -ge 1048576 -and $Item % 1048576 -eq 0) {
            return "$($Item / 1048576) MiB"
        }
        return "$Item"
    }
    ConvertTo-WinhostText $Item
}

function Show-WinhostLine {
    param([string]$Text)
    if (-not $script:Json) {
        Write-Host -Object (ConvertTo-WinhostVisible $Text) -ErrorAction Stop
    }
}

function Show-WinhostResult {
    param($Result)
    $script:WinhostCode = $Result.exit_code
    foreach ($line in $Result.lines) {
        Show-WinhostLine $line
    }
    if ($script:Json) {
        ConvertTo-WinhostText $Result.document
    }
}
