# steps: what of a goal does not hold yet, what depends on a resource, and doing it

function Select-WinhostChange {
    param($Goal, $Facts)
    # Only the properties that differ, and the one with the secret, which whatever is changed may need; nothing where none does.
    $now = Find-WinhostNow $Facts $Goal.resource $Goal.key
    if ($null -eq $now) {
        Stop-WinhostScript 1 'Gone' "it is not there any more: $($Goal.title)" '' 'Read the host again with Facts.ps1 and plan again.'
    }
    $change = @{ before = [ordered]@{}; desired = [ordered]@{} }
    foreach ($property in @($Goal.desired.PSObject.Properties)) {
        $found = Read-WinhostProperty $now $property.Name
        if (Test-WinhostSame $found $property.Value) {
            continue
        }
        if ($null -ne (Read-WinhostField $found 'unknown') -or $null -ne (Read-WinhostField $found 'unavailable')) {
            Stop-WinhostScript 1 'CannotRead' "$($Goal.title): $($property.Name) cannot be read: $(ConvertTo-WinhostWhy $found)" 'What cannot be read cannot be given back.' ''
        }
        $change.before[$property.Name] = $found
        $change.desired[$property.Name] = $property.Value
    }
    if ($change.desired.Count -gt 0) {
        $secret = (Find-WinhostResource $Goal.resource).credential
        if ($secret -cne '' -and $null -ne $Goal.desired.PSObject.Properties[$secret] -and $change.desired.Keys -cnotcontains $secret) {
            $change.before[$secret] = Read-WinhostProperty $now $secret
            $change.desired[$secret] = $Goal.desired.$secret
        }
        $change
    }
}

function New-WinhostStep {
    param($Goal, [string]$Role, $Change, $Risks)
    [ordered]@{ resource = $Goal.resource; key = $Goal.key; role = $Role; before = $Change.before; desired = $Change.desired; title = $Goal.title; risks = @($Risks) }
}

function Find-WinhostById {
    param($List, [string]$Resource, $Key)
    # Of requests, steps or what a run touched.
    $id = ConvertTo-WinhostId $Resource $Key
    foreach ($each in @($List)) {
        if ([string]::Equals((ConvertTo-WinhostId $each.resource $each.key), $id)) {
            $each
        }
    }
}

# ---- what depends on a resource: by what the host shows, not by runs

function Find-WinhostUsers {
    param([string]$Resource, $Key, $Facts)
    # Each by the first rule that names it, with the state that counts; or with why it cannot be read.
    $seen = @()
    foreach ($rule in (ConvertFrom-Json -InputObject (Find-WinhostResource $Resource).dependents -ErrorAction Stop)) {
        foreach ($user in @(Find-WinhostUsersBy $rule $Key $Facts)) {
            $id = "$($user.lacks)"
            if ($id -ceq '') {
                $id = ConvertTo-WinhostId $user.resource $user.key
            }
            if ($seen -cnotcontains $id) {
                $seen += $id
                $user
            }
        }
    }
}

function Find-WinhostUsersBy {
    param($Rule, $Key, $Facts)
    $answer = $Facts[$Rule.resource]
    if (-not $answer.ok) {
        if ($null -eq (Read-WinhostField $answer 'unavailable')) {
            return New-WinhostUser $Rule $null $null "$(ConvertTo-WinhostTitle $Rule.resource): $(ConvertTo-WinhostWhy $answer)"
        }
        if ($Rule.disks) {
            # Without what they run on distros cannot be listed; their disks may be there all the same.
            Find-WinhostDisks $Rule $Key $Facts
        }
        return
    }
    foreach ($found in @($answer.instances)) {
        if (-not (Test-WinhostShared $Rule.on $Key $found.key)) {
            continue
        }
        $names = @(foreach ($each in @($Rule.at, $Rule.unless)) { if ($null -ne $each) { $each[0] } }) + @(foreach ($each in @($Rule.since)) { if ($null -ne $each) { $each } })
        $unknown = @(foreach ($name in $names) { if ($null -ne (Read-WinhostField $found.state.$name 'unknown')) { $name } })
        if ($unknown.Count -gt 0) {
            New-WinhostUser $Rule $null $null "$(ConvertTo-WinhostTitle $Rule.resource) ($($unknown[0])): $(ConvertTo-WinhostWhy $found.state.($unknown[0]))"
        }
        elseif (Test-WinhostRests $Rule $Key $found.state) {
            New-WinhostUser $Rule $found.key (Select-WinhostCounted $Rule $found.state) ''
        }
    }
}

function New-WinhostUser {
    param($Rule, $Key, $State, [string]$Lacks)
    @{ resource = $Rule.resource; key = $Key; state = $State; since = $null -ne $Rule.since; label = $Rule.label; lacks = $Lacks }
}

function Test-WinhostShared {
    param($Parts, $Key, $Other)
    foreach ($part in @($Parts)) {
        if ("$($Other.$part)" -ne "$($Key.$part)") {
            return $false
        }
    }
    $true
}

function Test-WinhostRests {
    param($Rule, $Key, $State)
    if ($null -ne $Rule.at) {
        $named = $Rule.at[1]
        foreach ($part in @($Key.PSObject.Properties)) {
            $named = $named.Replace("{$($part.Name)}", "$($part.Value)")
        }
        if (-not (Test-WinhostSame (Read-WinhostProperty $State $Rule.at[0]) $named)) {
            return $false
        }
    }
    $null -eq $Rule.unless -or -not (Test-WinhostAmong (Read-WinhostProperty $State $Rule.unless[0]) $Rule.unless[1])
}

function Test-WinhostAmong {
    param($One, $Others)
    foreach ($other in $Others) {
        if (Test-WinhostSame $One $other) {
            return $true
        }
    }
    $false
}

function Select-WinhostCounted {
    param($Rule, $State)
    if (@($Rule.since).Count -gt 0 -and $null -ne $Rule.since) {
        $counted = [ordered]@{}
        foreach ($name in $Rule.since) {
            $counted[$name] = Read-WinhostProperty $State $name
        }
        [pscustomobject]$counted
    }
}

function Find-WinhostDisks {
    param($Rule, $Key, $Facts)
    $answer = $Facts['LocalAccount']
    if (-not $answer.ok) {
        if ($null -eq (Read-WinhostField $answer 'unavailable')) {
            New-WinhostUser $Rule $null $null "$(ConvertTo-WinhostTitle 'LocalAccount'): $(ConvertTo-WinhostWhy $answer)"
        }
        return
    }
    $parts = @(foreach ($part in @($Rule.on)) { if ($part -ceq 'account') { $part } })
    foreach ($found in @($answer.instances)) {
        if (-not (Test-WinhostShared $parts $Key $found.key)) {
            continue
        }
        if ($null -ne (Read-WinhostField $found.state.distros 'unknown')) {
            New-WinhostUser $Rule $null $null "$(ConvertTo-WinhostTitle 'LocalAccount') (distros): $(ConvertTo-WinhostWhy $found.state.distros)"
        }
        elseif ($found.state.distros) {
            # Whose distro it was nobody can tell: one without a name stands for all of an account.
            New-WinhostUser $Rule ([pscustomobject]@{ account = $found.key.account; distro = '' }) $null ''
        }
    }
}

function ConvertTo-WinhostUsers {
    param([string]$Resource, $Key, $Facts)
    # For the journal; nothing at all where some of it cannot be read.
    $users = @(Find-WinhostUsers $Resource $Key $Facts)
    $lacks = @(foreach ($user in $users) { if ($user.lacks -cne '') { $user } })
    if ($lacks.Count -eq 0) {
        , @(foreach ($user in $users) { [ordered]@{ resource = $user.resource; key = $user.key; state = $user.state } })
    }
}

# ---- doing them: each is one set of the agent, in the journal before and after

function Invoke-WinhostSteps {
    param($Run, $Steps, $Facts)
    Assert-WinhostConsents $Run $Steps
    $lines = @(ConvertTo-WinhostStepLines $Steps)
    for ($number = 0; $number -lt $Steps.Count; $number++) {
        Show-WinhostLine $lines[$number]
        Invoke-WinhostStep $Run $Steps[$number] $Facts
    }
}

function ConvertTo-WinhostStepLines {
    param($Steps)
    $number = 0
    foreach ($step in $Steps) {
        $number++
        $changes = @(foreach ($name in $step.desired.Keys) { "$name $(ConvertTo-WinhostShown $step.before[$name]) -> $(ConvertTo-WinhostShown $step.desired[$name])" })
        $asks = ''
        if ($step.risks.Count -gt 0) {
            $asks = " (asks for $($step.risks -join ', '))"
        }
        "[$number/$(@($Steps).Count)] $($step.title): $($changes -join ', ')$asks"
    }
}

function Invoke-WinhostStep {
    param($Run, $Step, $Facts)
    $found = [ordered]@{}
    foreach ($property in @((Find-WinhostNow $Facts $Step.resource $Step.key).PSObject.Properties)) {
        $found[$property.Name] = $property.Value
    }
    foreach ($name in $Step.before.Keys) {
        $found[$name] = $Step.before[$name]
    }
    if ($Step.resource -ceq 'ExternalSwitch') {
        Show-WinhostSwitchStep $Run $Step $Facts
    }
    $secret = Read-WinhostStepSecret $Step
    # Where it cannot be read, rollback keeps more, not less.
    $users = ConvertTo-WinhostUsers $Step.resource $Step.key $Facts
    $users = @(foreach ($user in $users) { $user })
    Write-WinhostEntry $Run 'begin' ([ordered]@{ step = $Step; found = $found; users = $users })
    $how = @{ accept = $Run.accepted; within = $Run.within }
    if ($null -ne $secret) {
        $how.secret = $secret
    }
    if (-not $Run.record.back) {
        # On the way back it has its marks already: they stay until all of it is back.
        $how.mark = New-WinhostMark $Run $Step
    }
    $call = @{ resource = $Step.resource; verb = 'set'; key = $Step.key; desired = $Step.desired; expect = $Step.before; how = $how }
    $answer = Select-WinhostBrought $Run $Step (Invoke-WinhostRequest @($call) $false)
    foreach ($warning in (Read-WinhostProperty $answer 'warnings')) {
        Show-WinhostLine "  the host warns: $warning"
    }
    if (-not $answer.ok) {
        Write-WinhostEntry $Run 'failed' ([ordered]@{ resource = $Step.resource; key = $Step.key; after = Read-WinhostLeft $answer $found; answer = $answer })
        Stop-WinhostStep $Run $Step $answer
    }
    Write-WinhostEntry $Run 'end' ([ordered]@{ resource = $Step.resource; key = $Step.key; after = $answer.after; restart = @($answer.restart).Count -gt 0 })
    $Run.changed++
    Assert-WinhostTaken $Step $answer
}

function Read-WinhostStepSecret {
    param($Step)
    # What a reference leads to here, before anything is written or changed. It goes to the agent of this very process.
    $property = (Find-WinhostResource $Step.resource).credential
    if ($property -ceq '' -or $Step.desired.Keys -cnotcontains $property -or $null -eq $Step.desired[$property]) {
        return $null
    }
    $reference = "$($Step.desired[$property])"
    $found = $null
    if ($reference -clike 'env:*') {
        $found = [System.Environment]::GetEnvironmentVariable($reference.Substring(4))
    }
    elseif ($reference -clike 'file:*') {
        $path = $reference.Substring(5)
        if ($path -cnotmatch '^([A-Za-z]:|[\\/])') {
            # From ~ or from here, which .NET alone does not know.
            $path = $ExecutionContext.SessionState.Path.GetUnresolvedProviderPathFromPSPath($path)
        }
        if ([System.IO.File]::Exists($path)) {
            $text = [System.IO.File]::ReadAllText($path).TrimEnd([char[]]@([char]13, [char]10))
            # Bytes that are no UTF-8 come as U+FFFD: that would be another secret.
            if ($text.IndexOf([char]0xfffd) -lt 0) {
                $found = $text
            }
        }
    }
    if ("$found" -ceq '') {
        $meaning = 'Here, a secret is an environment variable (env:NAME) or a file of UTF-8 text (file:PATH).'
        Stop-WinhostScript 2 'SecretUnreadable' "the secret $reference cannot be read" $meaning 'Set it, and type the same again to go on.'
    }
    "$found"
}

function Select-WinhostBrought {
    param($Run, $Step, $Answer)
    # What a step before it has brought along needs nothing more: a distro that starts lets in again.
    if ($null -eq (Read-WinhostField $Answer 'drift') -or $Step.role -ceq 'need' -or @($Run.record.touched).Count -eq 1) {
        return $Answer
    }
    foreach ($name in $Step.desired.Keys) {
        if (-not (Test-WinhostSame (Read-WinhostProperty $Answer.before $name) $Step.desired[$name])) {
            return $Answer
        }
    }
    [pscustomobject]@{ ok = $true; after = $Answer.before; restart = @() }
}

function Read-WinhostLeft {
    param($Answer, $Found)
    # Where the host drifted, all is as it was found, and what somebody did meanwhile is not the run's. After an error
    # the agent has read again.
    if ($null -ne (Read-WinhostField $Answer 'drift')) {
        return $Found
    }
    Read-WinhostField $Answer 'after'
}

# ---- a switch: the host makes or removes it by itself, and undoes that unless somebody says that it is to stay

function Show-WinhostSwitchStep {
    param($Run, $Step, $Facts)
    if (Test-WinhostSwitchWaits $Step $Facts) {
        if (-not $script:Keep) {
            Stop-WinhostSwitch $Run $Step
        }
        return
    }
    # Where a switch goes its addresses are with the host's port on it, and the adapter below has none.
    $goes = $null -eq $Step.desired.adapter
    $moved = @($Step.desired.adapter, $Step.before.adapter)[[int]$goes]
    $port = "vEthernet ($($Step.key.name))"
    $answer = Invoke-WinhostRequest @(@{ resource = 'NetworkAdapter'; verb = 'get' }) $false
    if (-not $answer.ok) {
        Show-WinhostLine "  Which addresses go over to another interface cannot be read: $(ConvertTo-WinhostWhy $answer)"
    }
    foreach ($adapter in @(foreach ($each in (Read-WinhostField $answer 'instances')) { $each })) {
        if ($adapter.key.adapter -cne $moved -and -not ($goes -and $adapter.state.name -ceq $port)) {
            continue
        }
        if ($adapter.state.addresses -isnot [array]) {
            Show-WinhostLine "  $($adapter.state.name): its addresses cannot be read: $(ConvertTo-WinhostWhy $adapter.state.addresses)"
            continue
        }
        $addresses = @(foreach ($each in $adapter.state.addresses) { "$($each.address)/$($each.prefix)" })
        if ($addresses.Count -gt 0) {
            Show-WinhostLine "  $($adapter.state.name) ($($addresses -join ', ')): what it has goes over to another interface."
        }
    }
    Show-WinhostLine '  This host may be out of reach for a minute.'
}

function Test-WinhostSwitchWaits {
    param($Switch, $Facts)
    @('pending', 'awaiting') -ccontains (Find-WinhostNow $Facts $Switch.resource $Switch.key).phase
}

function Stop-WinhostSwitch {
    param($Run, $Step)
    # That somebody runs a script here proves nothing about the network: whoever kept it must have looked.
    $done = @('made', 'removed')[[int]($null -eq $Step.desired.adapter)]
    # As the resource takes it.
    $seconds = @($Run.within, 300)[[int]($Run.within -lt 60)]
    $meaning = @('Look now whether this host can be reached as before: its gateway, your remote desktop, whoever else needs it.', "If it can, keep it. If nobody does within $seconds s, or the host restarts, it is as it was.")
    $again = @(".\$($Run.script)", "-Accept $($Run.accepted -join ',')", '-Keep')
    if ($Run.accepted.Count -eq 0) {
        $again = @(".\$($Run.script)", '-Keep')
    }
    Stop-WinhostScript 1 'NotKept' "$($Step.title): $done, and undone by this host itself unless you keep it" $meaning ($again -join ' ')
}

function Stop-WinhostStep {
    param($Run, $Step, $Answer)
    $fault = Read-WinhostField $Answer 'error'
    if ("$(Read-WinhostField $fault 'code')" -like 'Winhost.ComeBack*') {
        Stop-WinhostSwitch $Run $Step
    }
    $ways = 'Mend that and run this again to go on; or go back: .\Rollback.ps1'
    $drift = Read-WinhostField $Answer 'drift'
    if ($null -ne $drift) {
        $lines = @(foreach ($each in @($drift.PSObject.Properties)) { "$($each.Name) was $(ConvertTo-WinhostShown $each.Value.expected), is $(ConvertTo-WinhostShown $each.Value.found)" })
        Stop-WinhostScript 4 'Drifted' "$($Step.title): changed by somebody meanwhile" $lines $ways
    }
    $meaning = @('Steps before this one are done and journalled.')
    if ($Step.resource -ceq 'AssignableDevice') {
        $meaning += 'If the host says that nothing contains this device, -Accept force-dismount takes it all the same: its VM must be trusted then.'
    }
    Stop-WinhostScript 1 'StepFailed' "$($Step.title): $(ConvertTo-WinhostWhy $Answer)" $meaning $ways
}

function Assert-WinhostTaken {
    param($Step, $Answer)
    if (@($Answer.restart).Count -gt 0) {
        return
    }
    foreach ($name in $Step.desired.Keys) {
        $is = Read-WinhostProperty $Answer.after $name
        if (-not (Test-WinhostSame $is $Step.desired[$name])) {
            Stop-WinhostScript 1 'NotTaken' "$($Step.title): accepted without error, but $name is $(ConvertTo-WinhostShown $is)" '' 'Run this again to go on; or go back: .\Rollback.ps1'
        }
    }
}
