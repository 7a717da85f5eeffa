# Rollback.ps1: undo the changes of a run

function Invoke-WinhostRollback {
    param($Run)
    Resume-WinhostRollback $Run
    if (-not $script:WhatIf -and (Test-WinhostRestartDue $Run)) {
        return Request-WinhostRestart $Run
    }
    $facts = Wait-WinhostSwitchUndone $Run
    $back = Find-WinhostOutlook $Run $facts
    $parts = @(Split-WinhostTurns $back.goals)
    $steps = @(foreach ($part in $parts) { Find-WinhostUndoSteps $Run $part $facts })
    if ($script:WhatIf) {
        Show-WinhostWslAccounts $facts
        $result = New-WinhostPreview $Run $steps $back.kept
        $result.document['missing'] = @($back.missing)
        $result.lines += @(foreach ($undecided in $back.missing) { "  $($undecided.title): not judged: $($undecided.why)" })
        return $result
    }
    # Check all consents before the first step, so that a refusal leaves the run as it was.
    Assert-WinhostConsents $Run $steps
    if (-not $Run.record.back) {
        Write-WinhostEntry $Run 'back' @{ accepted = @($Run.accepted) }
    }
    foreach ($late in @($false, $true)) {
        $tried = @()
        $part = @(Find-WinhostRemainingGoals $back.goals $late $tried)
        # Undoing a resource may free another one that was kept for it: the switch that a distro was bridged to.
        while ($part.Count -gt 0) {
            $tried += @(foreach ($goal in $part) { ConvertTo-WinhostId $goal.resource $goal.key })
            Invoke-WinhostSteps $Run @(Find-WinhostUndoSteps $Run $part $facts) $facts
            $facts = Read-WinhostHost
            $back = Find-WinhostOutlook $Run $facts
            $part = @(Find-WinhostRemainingGoals $back.goals $late $tried)
        }
    }
    if ($Run.record.restart) {
        return Request-WinhostRestart $Run
    }
    Complete-WinhostRollback $Run $facts
}

function Find-WinhostRemainingGoals {
    param($Goals, $Late, $Tried)
    foreach ($goal in $Goals) {
        if ((Find-WinhostResource $goal.resource).restarts -eq $Late -and $Tried -cnotcontains (ConvertTo-WinhostId $goal.resource $goal.key)) {
            $goal
        }
    }
}

function Resume-WinhostRollback {
    param($Run)
    # Opens the newest run of this plan that is not rolled back, if no run of another plan followed it.
    $newest = $null
    $later = $null
    $empty = $null
    foreach ($journal in @(Find-WinhostJournals $Run)) {
        $read = Read-WinhostJournal $journal.path
        $own = $journal.sum -ceq $Run.sum
        $stands = $read.entries -gt 0 -and $read.record.outcome -cne 'rolled back'
        if ($own -and $read.entries -eq 0) {
            $empty = $journal.path
        }
        if ($stands -and $own) {
            $Run.older = $newest
            $newest = $journal.path
            $later = $null
        }
        elseif ($stands) {
            $later = $journal.path
        }
    }
    if ($null -eq $newest -and $null -ne $empty) {
        Stop-WinhostScript 2 'NeverBegun' "${empty}: begun, nothing done" 'It ended before its first line was on disk, so nothing was changed and there is nothing to undo.' 'Apply the plan again: .\Apply.ps1'
    }
    if ($null -eq $newest) {
        Stop-WinhostScript 2 'UnknownRun' 'no run of this plan stands on this host' "Looked in $($Run.journals)." 'There is nothing to undo.'
    }
    if ($null -ne $later) {
        Stop-WinhostScript 2 'LaterRun' 'another plan was applied after this one, and still stands' "Its journal: $later. Nothing was changed." 'Go back with the Rollback.ps1 of that bundle first.'
    }
    Open-WinhostJournal $Run $newest
}

function Wait-WinhostSwitchUndone {
    param($Run)
    # Waits until the host has undone a virtual switch that was not kept.
    $facts = Read-WinhostHost
    $waiting = @(foreach ($touched in $Run.record.touched) { if ($touched.resource -ceq 'ExternalSwitch' -and -not $Run.record.back) { $touched } })
    $end = (Read-WinhostClock) + $Run.within + 300
    foreach ($switch in $waiting) {
        if (-not $script:WhatIf -and (Test-WinhostSwitchIsPending $switch $facts)) {
            Show-WinhostLine "$($switch.title): nobody kept it; waiting until this host has undone it"
        }
        while (-not $script:WhatIf -and (Test-WinhostSwitchIsPending $switch $facts) -and (Read-WinhostClock) -lt $end) {
            Start-Sleep -Seconds 5 -ErrorAction Stop
            $facts = Read-WinhostHost
        }
    }
    $facts
}

# ---- which changes are undone, and which are kept

function Find-WinhostOutlook {
    param($Run, $Facts)
    # waits: something can be undone only after later changes. missing: resources about which rollback could not decide.
    # open: all resources that are not restored now. first: instructions for rolling back later runs before.
    $back = @{ goals = @(); kept = @(); waits = $false; missing = @(); open = @(); first = @() }
    $verdicts = @(foreach ($touched in $Run.record.touched) {
        $undo = New-WinhostUndo '' @{}
        # A resource that was restored for good may belong to others by now, so it need not be read.
        if ($null -eq (Find-WinhostById $Run.record.given $touched.resource $touched.key)) {
            $undo = Find-WinhostResourceUndo $touched $Run.record $Facts
        }
        @{ touched = $touched; undo = $undo; blocked_by = @() }
    })
    # The resources on which a kept one depends are kept too.
    do {
        $again = $false
        foreach ($each in $verdicts) {
            if (-not (Test-WinhostWillBeUndone $each)) {
                continue
            }
            $found = Find-WinhostNewerDependents $each.touched $verdicts $Facts
            if ($found.missing -cne '') {
                # Names that were found before do not count: the unread resource may be one of this run.
                $each.undo = New-WinhostUndecidedUndo $found.missing
                $again = $true
                continue
            }
            $each.blocked_by = $found.names
            $again = $again -or $found.names.Count -gt 0
        }
    } while ($again)
    $marks = @(foreach ($line in @((Read-WinhostSingle 'RunMarks').marks)) { Read-WinhostMark $line })
    foreach ($each in $verdicts) {
        $touched = $each.touched
        $thing = @{ resource = $touched.resource; key = $touched.key }
        if ($each.blocked_by.Count -gt 0) {
            $back.open += $thing
            $back.waits = $true
            $back.kept += "$($touched.title): kept: for $($each.blocked_by -join ', '), which came later; undo that, then do this again"
            continue
        }
        if ($each.undo.missing -cne '') {
            if (-not (Test-WinhostRemovedWithParent $touched $verdicts $Facts)) {
                $back.open += $thing
                $back.missing += [ordered]@{ title = $touched.title; resource = $touched.resource; key = $touched.key; why = $each.undo.missing }
            }
            continue
        }
        $later = @(Find-WinhostLaterRuns $Run $each $marks $Facts)
        if ($later.Count -gt 0) {
            $back.open += $thing
            $back.waits = $true
            $back.first += @(foreach ($other in $later) { $other.rollback })
            $runs = @(Select-WinhostUnique @(foreach ($other in $later) { $other.title })) -join ', '
            $back.kept += "$($touched.title): kept: changed since by run $runs; roll that back, then this again"
        }
        elseif ($each.undo.keep -cne '') {
            $back.open += $thing
            $back.kept += "$($touched.title): kept: $($each.undo.keep)"
        }
        if ($each.undo.desired.Count -gt 0) {
            $back.open += $thing
            $back.goals += [pscustomobject]@{ resource = $touched.resource; key = $touched.key; desired = [pscustomobject]$each.undo.desired; title = $touched.title }
        }
    }
    $back.kept = @(ConvertTo-WinhostVmNames $back.kept)
    $back
}

function ConvertTo-WinhostVmNames {
    param($Sentences)
    # Replaces the GUIDs of VMs by their names, if these are known and unique. In one substitution, so that a name is never
    # replaced again.
    if (@($Sentences).Count -eq 0) {
        return
    }
    $names = @{}
    $answer = Invoke-WinhostRequest @(@{ resource = 'Vm'; verb = 'get' }) $false
    $vms = @()
    if ($answer.ok) {
        $vms = @($answer.instances)
    }
    foreach ($vm in $vms) {
        $same = @(foreach ($other in $vms) { if ($other.state.name -ceq $vm.state.name) { $other } })
        if ($same.Count -eq 1 -and $vm.state.name -is [string]) {
            $names[$vm.key.vm] = $vm.state.name
        }
    }
    if ($names.Count -eq 0) {
        return $Sentences
    }
    $pattern = @(foreach ($guid in $names.Keys) { [regex]::Escape($guid) }) -join '|'
    foreach ($sentence in $Sentences) {
        [regex]::Replace($sentence, $pattern, { param($Found) $names[$Found.Value] })
    }
}

function Test-WinhostWillBeUndone {
    param($Verdict)
    $Verdict.blocked_by.Count -eq 0 -and $Verdict.undo.missing -ceq '' -and $Verdict.undo.desired.Count -gt 0
}

# ---- newer dependents, of another run or made by hand, which undoing the change would break

function Find-WinhostNewerDependents {
    param($Touched, $Verdicts, $Facts)
    # The names of dependents that are newer than the change; or why they cannot be read.
    $result = @{ names = @(); missing = Find-WinhostUnreadPart $Touched $Verdicts $Facts }
    $known = @($Touched.users) + @(foreach ($user in $Touched.dependents) { $user })
    foreach ($user in @(Find-WinhostDependents $Touched.resource $Touched.key $Facts)) {
        if ($user.missing -cne '' -and $user.since -and ($null -eq $Touched.dependents -or (Test-WinhostInOwnDistro $Touched $Verdicts))) {
            # The run recorded no dependents to compare with, or the distro is exported and removed with its content.
            continue
        }
        if ($user.missing -cne '') {
            $result.missing = $user.missing
        }
        if ($result.missing -cne '') {
            return $result
        }
        $own = @(foreach ($each in $Verdicts) { if ($null -ne (Find-WinhostById @($each.touched) $user.resource $user.key)) { $each } })
        if ($own.Count -gt 0) {
            $result.names += @(Find-WinhostOwnDependentNames $own[0] $Touched $Facts)
        }
        elseif (-not (Test-WinhostWasThereBefore $user $known ($null -ne $Touched.dependents))) {
            if (Test-WinhostUnlistedDistro $user $known $Verdicts) {
                $result.missing = "$(ConvertTo-WinhostTitle $user.resource): $(ConvertTo-WinhostFaultText $Facts[$user.resource])"
                return $result
            }
            $result.names += ConvertTo-WinhostDependentName $user $user.label
        }
    }
    # Instances that this run created and others have removed depend on it again when those changes are rolled back.
    foreach ($rule in (ConvertFrom-Json -InputObject (Find-WinhostResource $Touched.resource).dependents -ErrorAction Stop)) {
        foreach ($each in $Verdicts) {
            if ($rule.lent -and $each.touched.resource -ceq $rule.resource -and (Test-WinhostDepends $rule $Touched.key ([pscustomobject]$each.touched.after))) {
                $result.names += @(Find-WinhostOwnDependentNames $each $Touched $Facts)
            }
        }
    }
    $result.names = @(Select-WinhostUnique $result.names)
    $result
}

function Find-WinhostUnreadPart {
    param($Parent, $Verdicts, $Facts)
    # Without the role, VM settings that cannot be read now could not be restored.
    foreach ($each in $Verdicts) {
        $part = $each.touched
        if ($each.undo.missing -cne '' -and (Find-WinhostResource $part.resource).requires -ceq $Parent.resource -and -not (Test-WinhostRemovedWithParent $part $Verdicts $Facts)) {
            return $each.undo.missing
        }
    }
    ''
}

function Find-WinhostOwnDependentNames {
    param($Verdict, $Parent, $Facts)
    # A changed resource of this run counts if it is kept for others, or others have changed it. Inside a distro that this
    # run made nothing is kept: others' changes are removed with the distro.
    if ($Verdict.blocked_by.Count -gt 0) {
        return $Verdict.blocked_by
    }
    if ((Test-WinhostInParent $Verdict.touched $Parent) -and (Test-WinhostWasCreated $Parent)) {
        return
    }
    if ($Verdict.undo.keep -cne '' -and -not (Test-WinhostWillBeUndone $Verdict) -and (Test-WinhostChangedByOthers $Verdict.touched $Facts)) {
        $Verdict.touched.title
    }
}

function Test-WinhostChangedByOthers {
    param($Touched, $Facts)
    # True if it is neither as before the run nor as the run left it.
    if (-not $Facts[(Find-WinhostResource $Touched.resource).name].ok) {
        return $false
    }
    $now = Find-WinhostState $Facts $Touched.resource $Touched.key
    foreach ($name in $Touched.changed) {
        $left = @(, (Read-WinhostProperty $Touched.before $name)) + @(, $Touched.after[$name])
        foreach ($state in $Touched.transitional) {
            if ($null -ne $state.PSObject.Properties[$name]) {
                $left += , (Read-WinhostProperty $state $name)
            }
        }
        if ($null -ne $now -and -not (Test-WinhostIsAmong (Read-WinhostProperty $now $name) $left)) {
            return $true
        }
    }
    $false
}

function Test-WinhostWasThereBefore {
    param($User, $Known, [bool]$Seen)
    # True if a dependent existed at the change or at the end of the run, in its present state if that counts.
    if ($User.since -and -not $Seen) {
        return $true
    }
    foreach ($same in @(Find-WinhostById $Known $User.resource $User.key)) {
        $state = Read-WinhostField $same 'state'
        if ($null -eq $state -or (Test-WinhostSame $state $User.state)) {
            return $true
        }
    }
    $false
}

function Test-WinhostUnlistedDistro {
    param($User, $Known, $Verdicts)
    # True if it is an unlisted distro, known by its disk alone, that may be one which the run knew or made.
    if ($null -eq $User.key.PSObject.Properties['distro'] -or $User.key.distro -cne '') {
        return $false
    }
    $unread = @(foreach ($each in $Verdicts) { if ($each.undo.missing -cne '') { $each.touched } })
    foreach ($other in @($Known) + $unread) {
        if ($other.resource -ceq $User.resource -and $other.key.account -ceq $User.key.account) {
            return $true
        }
    }
    $false
}

function ConvertTo-WinhostDependentName {
    param($User, [string]$Part)
    if ($Part -ceq '') {
        return ConvertTo-WinhostTitle $User.resource
    }
    if ($User.key.$Part -ceq '') {
        return "a distro of $($User.key.account)"
    }
    $User.key.$Part
}

# ---- parts of a distro or VM

function Test-WinhostRemovedWithParent {
    param($Part, $Verdicts, $Facts)
    # True if it is removed with a parent that this run created, and has removed or removes now.
    foreach ($each in $Verdicts) {
        $parent = $each.touched
        if ((Test-WinhostInParent $Part $parent) -and (Test-WinhostWasCreated $parent)) {
            if ((Test-WinhostWillBeUndone $each) -or (Test-WinhostIsOriginal $parent $Facts)) {
                return $true
            }
        }
    }
    $false
}

function Test-WinhostInOwnDistro {
    param($Touched, $Verdicts)
    # True for a distro that this run made, and for parts of one.
    if ($Touched.resource -ceq 'WslDistro' -and (Test-WinhostWasCreated $Touched)) {
        return $true
    }
    foreach ($each in $Verdicts) {
        if ((Test-WinhostInParent $Touched $each.touched) -and (Test-WinhostWasCreated $each.touched)) {
            return $true
        }
    }
    $false
}

function Test-WinhostInParent {
    param($Part, $Parent)
    if ((Find-WinhostResource $Part.resource).within -cne $Parent.resource) {
        return $false
    }
    foreach ($name in @($Parent.key.PSObject.Properties)) {
        if ($null -ne $Part.key.PSObject.Properties[$name.Name] -and "$($Part.key.($name.Name))" -cne "$($name.Value)") {
            return $false
        }
    }
    $true
}

function Test-WinhostBelongsTo {
    param($Parent, $Part)
    # True if the part belongs to a parent that the run created, as a setting belongs to its VM. A run that was killed may
    # not know the name of the instance that it created; then the part may belong to that.
    $theirs, $own = "$((Find-WinhostResource $Parent.resource).known_as)" -split ' '
    if ($null -eq $own -or $null -eq $Part.key.PSObject.Properties[$theirs] -or -not (Test-WinhostWasCreated $Parent)) {
        return $false
    }
    $null -eq $Parent.after[$own] -or "$($Part.key.$theirs)" -ceq "$($Parent.after[$own])"
}

function Test-WinhostWasCreated {
    param($Parent)
    # Compares properties one by one, because their order may differ.
    $absent = ConvertFrom-Json -InputObject (Find-WinhostResource $Parent.resource).absent -ErrorAction Stop
    $names = @(foreach ($property in @($Parent.before.PSObject.Properties)) { $property.Name })
    if ($null -eq $absent -or $names.Count -ne @($absent.PSObject.Properties).Count) {
        return $false
    }
    foreach ($name in $names) {
        if ($null -eq $absent.PSObject.Properties[$name] -or -not (Test-WinhostSame $Parent.before.$name $absent.$name)) {
            return $false
        }
    }
    $true
}

function Test-WinhostIsOriginal {
    param($Touched, $Facts)
    # True if it is as before the run, or was so when it could last be read during the rollback.
    $states = $Touched.transitional
    if ($Facts[(Find-WinhostResource $Touched.resource).name].ok) {
        $states = @(Find-WinhostState $Facts $Touched.resource $Touched.key)
    }
    foreach ($state in $states) {
        foreach ($name in $Touched.changed) {
            if ($null -ne $state.PSObject.Properties[$name] -and -not (Test-WinhostSame (Read-WinhostProperty $state $name) (Read-WinhostProperty $Touched.before $name))) {
                return $false
            }
        }
    }
    @($states).Count -gt 0
}

# ---- one resource

function Find-WinhostResourceUndo {
    param($Touched, $Record, $Facts)
    $answer = $Facts[(Find-WinhostResource $Touched.resource).name]
    if (-not $answer.ok) {
        return Find-WinhostUnreadableUndo $Touched $Record $Facts $answer
    }
    $now = Find-WinhostState $Facts $Touched.resource $Touched.key
    if ($null -eq $now) {
        $made = @(foreach ($parent in $Record.touched) { if (Test-WinhostBelongsTo $parent $Touched) { $parent } })
        return New-WinhostUndo (@('it is not there any more', '')[[int]($made.Count -gt 0)]) @{}
    }
    $undo = Find-WinhostUndo $Touched $now
    if ($undo.desired.Count -gt 0 -and (Find-WinhostResource $Touched.resource).within -cne '') {
        $found = @(Find-WinhostParent $Touched $Facts)
        if ($found.Count -eq 0) {
            return Find-WinhostMissingParentUndo $Touched $Record
        }
        if ($found[0].missing -cne '') {
            return New-WinhostUndecidedUndo $found[0].missing
        }
    }
    $undo
}

function Find-WinhostParent {
    param($Touched, $Facts)
    # The parent; nothing if there is no such distro any more.
    $parts = @(foreach ($part in @('account', 'distro')) { if ($null -ne $Touched.key.PSObject.Properties[$part]) { $part } })
    $rule = [pscustomobject]@{ resource = (Find-WinhostResource $Touched.resource).within; on = $parts; at = $null; unless = $null; since = $null; disks = $true; label = 'account' }
    Find-WinhostDependentsByRule $rule $Touched.key $Facts
}

function Find-WinhostMissingParentUndo {
    param($Touched, $Record)
    # Nothing to undo if this run created the parent that is missing now; else the part is kept.
    $made = @(foreach ($parent in $Record.touched) { if ((Test-WinhostInParent $Touched $parent) -and (Test-WinhostWasCreated $parent)) { $parent } })
    New-WinhostUndo (@('it is not there any more', '')[[int]($made.Count -gt 0)]) @{}
}

function Find-WinhostUnreadableUndo {
    param($Touched, $Record, $Facts, $Answer)
    $until = "$(Read-WinhostField $Answer 'unavailable')"
    # A resource of a role that this rollback is removing was removed with the role.
    $changing = @(foreach ($other in $Record.touched) { if ($Record.back -and @($other.transitional).Count -gt 0) { $other.resource } })
    if ($until -cne '' -and $changing -ccontains $until) {
        return New-WinhostUndo '' @{}
    }
    $row = Find-WinhostResource $Touched.resource
    $rule = ConvertFrom-Json -InputObject $row.undo -ErrorAction Stop
    if ($until -cne '' -and $until -ceq $row.requires -and (Read-WinhostField $rule 'ends_with_required')) {
        # Without the role no VM runs, whoever removed it.
        return New-WinhostUndo '' @{}
    }
    # The content of a distro that no longer exists is removed too.
    if ($until -cne '' -and $row.within -cne '' -and @(Find-WinhostParent $Touched $Facts).Count -eq 0) {
        return Find-WinhostMissingParentUndo $Touched $Record
    }
    New-WinhostUndecidedUndo "$(ConvertTo-WinhostTitle $Touched.resource): $(ConvertTo-WinhostFaultText $Answer)"
}

function Split-WinhostTurns {
    param($Goals)
    # Goals that need no restart come first: without the role, the settings of VMs could not be restored.
    foreach ($late in @($false, $true)) {
        $part = @(foreach ($goal in $Goals) { if ((Find-WinhostResource $goal.resource).restarts -eq $late) { $goal } })
        if ($part.Count -gt 0) {
            , $part
        }
    }
}

function Complete-WinhostRollback {
    param($Run, $Facts)
    $back = Find-WinhostOutlook $Run $Facts
    $left = @(foreach ($check in @(Test-WinhostGoals $back.goals $Facts)) { if (-not $check.holds) { $check } })
    $open = $left.Count + $back.missing.Count -gt 0
    $partly = $back.waits -and -not $open
    $outcome = @('rolled back', 'not all rolled back')[[int]$open]
    if ($partly) {
        $outcome = 'partly rolled back'
    }
    $remaining = @()
    if ($outcome -cne 'rolled back') {
        $remaining = @($back.open)
    }
    Remove-WinhostRunMarks $Run $remaining
    Write-WinhostEntry $Run 'outcome' ([ordered]@{ outcome = $outcome; open = @($back.open) })
    $next = @()
    $first = @(Select-WinhostUnique $back.first)
    if ($partly -and $first.Count -gt 0) {
        $next += "Roll back the remaining changes: $($first -join ', then '), then .\Rollback.ps1"
    }
    elseif ($partly) {
        $next += 'Undo the later changes, then continue the rollback: .\Rollback.ps1'
    }
    elseif ($null -ne $Run.older) {
        $next += 'An earlier run of this plan stands as well. To undo that too: .\Rollback.ps1 once more.'
    }
    if ($back.missing.Count -gt 0) {
        $next += 'Repair what could not be read, or restore what it needs; then continue the rollback: .\Rollback.ps1'
    }
    $undecidedLines = @(foreach ($undecided in $back.missing) { "$($undecided.title): not judged: $($undecided.why)" })
    $result = New-WinhostOutcome $Run $outcome $left (@($back.kept) + $undecidedLines) $next
    $result.document.kept = @($back.kept)
    $result.document['missing'] = @($back.missing)
    if ($partly -or $back.missing.Count -gt 0) {
        $result.exit_code = 1
    }
    $result
}
