# steps: differences from a goal, dependents of a resource, and running steps

function Select-WinhostChange {
    param($Goal, $Facts)
    # The properties that differ, and the one with the secret, which any change may need; nothing if none differ.
    $now = Find-WinhostState $Facts $Goal.resource $Goal.key
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
            Stop-WinhostScript 1 'CannotRead' "$($Goal.title): $($property.Name) cannot be read: $(ConvertTo-WinhostFaultText $found)" 'What cannot be read cannot be restored.' ''
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
    # Finds an instance among goals, steps or changed resources.
    $id = ConvertTo-WinhostId $Resource $Key
    foreach ($each in @($List)) {
        if ([string]::Equals((ConvertTo-WinhostId $each.resource $each.key), $id)) {
            $each
        }
    }
}

# ---- dependents of a resource, by the host's answers

function Find-WinhostDependents {
    param([string]$Resource, $Key, $Facts)
    # Each by the first rule that applies, with the state that counts; or with the reason why it cannot be read.
    $seen = @()
    foreach ($rule in (ConvertFrom-Json -InputObject (Find-WinhostResource $Resource).dependents -ErrorAction Stop)) {
        foreach ($user in @(Find-WinhostDependentsByRule $rule $Key $Facts)) {
            $id = "$($user.missing)"
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

function Find-WinhostDependentsByRule {
    param($Rule, $Key, $Facts)
    $answer = $Facts[$Rule.resource]
    if (-not $answer.ok) {
        if ($null -eq (Read-WinhostField $answer 'unavailable')) {
            return New-WinhostDependent $Rule $null $null "$(ConvertTo-WinhostTitle $Rule.resource): $(ConvertTo-WinhostFaultText $answer)"
        }
        if ($Rule.disks) {
            # Without the Windows feature for WSL, distros cannot be listed, but their disks may exist.
            Find-WinhostDistroDisks $Rule $Key $Facts
        }
        return
    }
    foreach ($found in @($answer.instances)) {
        if (-not (Test-WinhostSameKeyParts $Rule.on $Key $found.key)) {
            continue
        }
        $names = @(foreach ($each in @($Rule.at, $Rule.unless)) { if ($null -ne $each) { $each[0] } }) + @(foreach ($each in @($Rule.since)) { if ($null -ne $each) { $each } })
        $unknown = @(foreach ($name in $names) { if ($null -ne (Read-WinhostField $found.state.$name 'unknown')) { $name } })
        if ($unknown.Count -gt 0) {
            New-WinhostDependent $Rule $null $null "$(ConvertTo-WinhostTitle $Rule.resource) ($($unknown[0])): $(ConvertTo-WinhostFaultText $found.state.($unknown[0]))"
        }
        elseif (Test-WinhostDepends $Rule $Key $found.state) {
            New-WinhostDependent $Rule $found.key (Select-WinhostCountedState $Rule $found.state) ''
        }
    }
}

function New-WinhostDependent {
    param($Rule, $Key, $State, [string]$Missing)
    @{ resource = $Rule.resource; key = $Key; state = $State; since = $null -ne $Rule.since; label = $Rule.label; missing = $Missing }
}

function Test-WinhostSameKeyParts {
    param($Parts, $Key, $Other)
    foreach ($part in @($Parts)) {
        if ("$($Other.$part)" -ne "$($Key.$part)") {
            return $false
        }
    }
    $true
}

function Test-WinhostDepends {
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
    $null -eq $Rule.unless -or -not (Test-WinhostIsAmong (Read-WinhostProperty $State $Rule.unless[0]) $Rule.unless[1])
}

function Test-WinhostIsAmong {
    param($Item, $Others)
    foreach ($other in $Others) {
        if (Test-WinhostSame $Item $other) {
            return $true
        }
    }
    $false
}

function Select-WinhostCountedState {
    param($Rule, $State)
    if (@($Rule.since).Count -gt 0 -and $null -ne $Rule.since) {
        $selected = [ordered]@{}
        foreach ($name in $Rule.since) {
            $selected[$name] = Read-WinhostProperty $State $name
        }
        [pscustomobject]$selected
    }
}

function Find-WinhostDistroDisks {
    param($Rule, $Key, $Facts)
    $answer = $Facts['LocalAccount']
    if (-not $answer.ok) {
        if ($null -eq (Read-WinhostField $answer 'unavailable')) {
            New-WinhostDependent $Rule $null $null "$(ConvertTo-WinhostTitle 'LocalAccount'): $(ConvertTo-WinhostFaultText $answer)"
        }
        return
    }
    $parts = @(foreach ($part in @($Rule.on)) { if ($part -ceq 'account') { $part } })
    foreach ($found in @($answer.instances)) {
        if (-not (Test-WinhostSameKeyParts $parts $Key $found.key)) {
            continue
        }
        if ($null -ne (Read-WinhostField $found.state.distros 'unknown')) {
            New-WinhostDependent $Rule $null $null "$(ConvertTo-WinhostTitle 'LocalAccount') (distros): $(ConvertTo-WinhostFaultText $found.state.distros)"
        }
        elseif ($found.state.distros) {
            # The distro of a disk is not known: one without a name stands for all distros of an account.
            New-WinhostDependent $Rule ([pscustomobject]@{ account = $found.key.account; distro = '' }) $null ''
        }
    }
}

function ConvertTo-WinhostDependentEntries {
    param([string]$Resource, $Key, $Facts)
    # The dependents for the journal; nothing if some cannot be read.
    $users = @(Find-WinhostDependents $Resource $Key $Facts)
    $unread = @(foreach ($user in $users) { if ($user.missing -cne '') { $user } })
    if ($unread.Count -eq 0) {
        , @(foreach ($user in $users) { [ordered]@{ resource = $user.resource; key = $user.key; state = $user.state } })
    }
}

# ---- run steps: each is one set of the agent, in the journal before and after

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
        $changes = @(foreach ($name in $step.desired.Keys) { "$name $(ConvertTo-WinhostDisplayText $step.before[$name]) -> $(ConvertTo-WinhostDisplayText $step.desired[$name])" })
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
    foreach ($property in @((Find-WinhostState $Facts $Step.resource $Step.key).PSObject.Properties)) {
        $found[$property.Name] = $property.Value
    }
    foreach ($name in $Step.before.Keys) {
        $found[$name] = $Step.before[$name]
    }
    if ($Step.resource -ceq 'ExternalSwitch') {
        Show-WinhostSwitchStep $Run $Step $Facts
    }
    $secret = Read-WinhostStepSecret $Step
    # If some cannot be read, rollback keeps more resources, not fewer.
    $users = ConvertTo-WinhostDependentEntries $Step.resource $Step.key $Facts
    $users = @(foreach ($user in $users) { $user })
    Write-WinhostEntry $Run 'begin' ([ordered]@{ step = $Step; found = $found; users = $users })
    $how = @{ accept = $Run.accepted; within = $Run.within }
    if ($null -ne $secret) {
        $how.secret = $secret
    }
    if (-not $Run.record.back) {
        # A rollback step writes no mark: the run's own marks stay until all of it is undone.
        $how.mark = New-WinhostMark $Run $Step
    }
    $call = @{ resource = $Step.resource; verb = 'set'; key = $Step.key; desired = $Step.desired; expect = $Step.before; how = $how }
    $answer = Select-WinhostAnswer $Run $Step (Invoke-WinhostRequest @($call) $false)
    foreach ($warning in (Read-WinhostProperty $answer 'warnings')) {
        Show-WinhostLine "  the host warns: $warning"
    }
    if (-not $answer.ok) {
        Write-WinhostEntry $Run 'failed' ([ordered]@{ resource = $Step.resource; key = $Step.key; after = Read-WinhostStateAfter $answer $found; answer = $answer })
        Stop-WinhostStep $Run $Step $answer
    }
    Write-WinhostEntry $Run 'end' ([ordered]@{ resource = $Step.resource; key = $Step.key; after = $answer.after; restart = @($answer.restart).Count -gt 0 })
    $Run.changed++
    Assert-WinhostApplied $Step $answer
}

function Read-WinhostStepSecret {
    param($Step)
    # Resolves a secret before anything is written or changed. It is passed only to the agent in this process.
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
            # Relative to ~ or to PowerShell's folder, which .NET does not know.
            $path = $ExecutionContext.SessionState.Path.GetUnresolvedProviderPathFromPSPath($path)
        }
        if ([System.IO.File]::Exists($path)) {
            $text = [System.IO.File]::ReadAllText($path).TrimEnd([char[]]@([char]13, [char]10))
            # Bytes that are no UTF-8 become U+FFFD, which would be another secret.
            if ($text.IndexOf([char]0xfffd) -lt 0) {
                $found = $text
            }
        }
    }
    if ("$found" -ceq '') {
        $meaning = 'Here, a secret is an environment variable (env:NAME) or a file of UTF-8 text (file:PATH).'
        Stop-WinhostScript 2 'SecretUnreadable' "the secret $reference cannot be read" $meaning 'Set it, and repeat the command to continue.'
    }
    "$found"
}

function Select-WinhostAnswer {
    param($Run, $Step, $Answer)
    # If an earlier step has met the goal already, nothing more is needed. A distro that starts opens its SSH access too.
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

function Read-WinhostStateAfter {
    param($Answer, $Found)
    # After drift the step has changed nothing: the drift is somebody else's change. After an error the agent has read the
    # state again.
    if ($null -ne (Read-WinhostField $Answer 'drift')) {
        return $Found
    }
    Read-WinhostField $Answer 'after'
}

# ---- a virtual switch: the host undoes the change unless the user confirms it

function Show-WinhostSwitchStep {
    param($Run, $Step, $Facts)
    if (Test-WinhostSwitchIsPending $Step $Facts) {
        if (-not $script:Keep) {
            Stop-WinhostSwitch $Run $Step
        }
        return
    }
    # A switch that is removed has its addresses on the host's port, and none on the adapter below.
    $isRemoved = $null -eq $Step.desired.adapter
    $moved = @($Step.desired.adapter, $Step.before.adapter)[[int]$isRemoved]
    $port = "vEthernet ($($Step.key.name))"
    $answer = Invoke-WinhostRequest @(@{ resource = 'NetworkAdapter'; verb = 'get' }) $false
    if (-not $answer.ok) {
        Show-WinhostLine "  Which addresses go over to another interface cannot be read: $(ConvertTo-WinhostFaultText $answer)"
    }
    foreach ($adapter in @(foreach ($each in (Read-WinhostField $answer 'instances')) { $each })) {
        if ($adapter.key.adapter -cne $moved -and -not ($isRemoved -and $adapter.state.name -ceq $port)) {
            continue
        }
        if ($adapter.state.addresses -isnot [array]) {
            Show-WinhostLine "  $($adapter.state.name): its addresses cannot be read: $(ConvertTo-WinhostFaultText $adapter.state.addresses)"
            continue
        }
        $addresses = @(foreach ($each in $adapter.state.addresses) { "$($each.address)/$($each.prefix)" })
        if ($addresses.Count -gt 0) {
            Show-WinhostLine "  $($adapter.state.name) ($($addresses -join ', ')): what it has goes over to another interface."
        }
    }
    Show-WinhostLine '  This host may be out of reach for a minute.'
}

function Test-WinhostSwitchIsPending {
    param($Switch, $Facts)
    @('pending', 'awaiting') -ccontains (Find-WinhostState $Facts $Switch.resource $Switch.key).phase
}

function Stop-WinhostSwitch {
    param($Run, $Step)
    # A script that runs here proves nothing about the network, so only a user who has checked it may keep the switch.
    $done = @('made', 'removed')[[int]($null -eq $Step.desired.adapter)]
    # As in the resource.
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
    $ways = 'Mend that and run this again to continue; or roll back: .\Rollback.ps1'
    $drift = Read-WinhostField $Answer 'drift'
    if ($null -ne $drift) {
        $lines = @(foreach ($each in @($drift.PSObject.Properties)) { "$($each.Name) was $(ConvertTo-WinhostDisplayText $each.Value.expected), is $(ConvertTo-WinhostDisplayText $each.Value.found)" })
        Stop-WinhostScript 4 'Drifted' "$($Step.title): changed by somebody meanwhile" $lines $ways
    }
    $meaning = @('Steps before this one are done and journalled.')
    if ($Step.resource -ceq 'AssignableDevice') {
        $meaning += 'If the host says that nothing contains this device, -Accept force-dismount takes it all the same: its VM must be trusted then.'
    }
    Stop-WinhostScript 1 'StepFailed' "$($Step.title): $(ConvertTo-WinhostFaultText $Answer)" $meaning $ways
}

function Assert-WinhostApplied {
    param($Step, $Answer)
    if (@($Answer.restart).Count -gt 0) {
        return
    }
    foreach ($name in $Step.desired.Keys) {
        $is = Read-WinhostProperty $Answer.after $name
        if (-not (Test-WinhostSame $is $Step.desired[$name])) {
            Stop-WinhostScript 1 'NotTaken' "$($Step.title): accepted without error, but $name is $(ConvertTo-WinhostDisplayText $is)" '' 'Run this again to continue; or roll back: .\Rollback.ps1'
        }
    }
}
