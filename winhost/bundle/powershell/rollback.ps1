# Rollback.ps1: back to what was found

function Invoke-WinhostRollback {
    param($Run)
    Resume-WinhostRollback $Run
    if (-not $script:WhatIf -and (Test-WinhostRestartDue $Run)) {
        return Request-WinhostRestart $Run
    }
    $facts = Wait-WinhostUndone $Run
    $back = Find-WinhostBack $Run $facts
    $parts = @(Split-WinhostParts $back.goals)
    $steps = @(foreach ($part in $parts) { Find-WinhostUndoSteps $Run $part $facts })
    if ($script:WhatIf) {
        Show-WinhostReadAs $facts
        $result = New-WinhostPreview $Run $steps $back.kept
        $result.document['missing'] = @($back.missing)
        $result.lines += @(foreach ($lacks in $back.missing) { "  $($lacks.title): not judged: $($lacks.why)" })
        return $result
    }
    # All consents before the first step back, so that a refusal leaves the run as it was.
    Assert-WinhostConsents $Run $steps
    if (-not $Run.record.back) {
        Write-WinhostEntry $Run 'back' @{ accepted = @($Run.accepted) }
    }
    foreach ($late in @($false, $true)) {
        $tried = @()
        $part = @(Find-WinhostUntried $back.goals $late $tried)
        # What goes back may free what was kept for it, such as the switch that a distro of this run was bridged to.
        while ($part.Count -gt 0) {
            $tried += @(foreach ($goal in $part) { ConvertTo-WinhostId $goal.resource $goal.key })
            Invoke-WinhostSteps $Run @(Find-WinhostUndoSteps $Run $part $facts) $facts
            $facts = Read-WinhostHost
            $back = Find-WinhostBack $Run $facts
            $part = @(Find-WinhostUntried $back.goals $late $tried)
        }
    }
    if ($Run.record.restart) {
        return Request-WinhostRestart $Run
    }
    Complete-WinhostRollback $Run $facts
}

function Find-WinhostUntried {
    param($Goals, $Late, $Tried)
    foreach ($goal in $Goals) {
        if ((Find-WinhostResource $goal.resource).restarts -eq $Late -and $Tried -cnotcontains (ConvertTo-WinhostId $goal.resource $goal.key)) {
            $goal
        }
    }
}

function Resume-WinhostRollback {
    param($Run)
    # The newest run of this plan that still stands, and nothing of another plan on top of it.
    $newest = $null
    $later = $null
    $never = $null
    foreach ($journal in @(Find-WinhostJournals $Run)) {
        $read = Read-WinhostJournal $journal.path
        $mine = $journal.sum -ceq $Run.sum
        $stands = $read.entries -gt 0 -and $read.record.outcome -cne 'rolled back'
        if ($mine -and $read.entries -eq 0) {
            $never = $journal.path
        }
        if ($stands -and $mine) {
            $Run.older = $newest
            $newest = $journal.path
            $later = $null
        }
        elseif ($stands) {
            $later = $journal.path
        }
    }
    if ($null -eq $newest -and $null -ne $never) {
        Stop-WinhostScript 2 'NeverBegun' "${never}: begun, nothing done" 'It ended before its first line was on disk, so nothing was changed and there is nothing to undo.' 'Apply the plan again: .\Apply.ps1'
    }
    if ($null -eq $newest) {
        Stop-WinhostScript 2 'UnknownRun' 'no run of this plan stands on this host' "Looked in $($Run.journals)." 'There is nothing to undo.'
    }
    if ($null -ne $later) {
        Stop-WinhostScript 2 'LaterRun' 'another plan was applied after this one, and still stands' "Its journal: $later. Nothing was changed." 'Go back with the Rollback.ps1 of that bundle first.'
    }
    Open-WinhostJournal $Run $newest
}

function Wait-WinhostUndone {
    param($Run)
    # A switch that nobody kept is still there, and goes by itself: only then the host is as it was.
    $facts = Read-WinhostHost
    $waiting = @(foreach ($touched in $Run.record.touched) { if ($touched.resource -ceq 'ExternalSwitch' -and -not $Run.record.back) { $touched } })
    $end = (Read-WinhostClock) + $Run.within + 300
    foreach ($switch in $waiting) {
        if (-not $script:WhatIf -and (Test-WinhostSwitchWaits $switch $facts)) {
            Show-WinhostLine "$($switch.title): nobody kept it; waiting until this host has undone it"
        }
        while (-not $script:WhatIf -and (Test-WinhostSwitchWaits $switch $facts) -and (Read-WinhostClock) -lt $end) {
            Start-Sleep -Seconds 5 -ErrorAction Stop
            $facts = Read-WinhostHost
        }
    }
    $facts
}

# ---- what is put back, and what is kept

function Find-WinhostBack {
    param($Run, $Facts)
    # waits: some of it can be put back only when what came later is undone. missing: what could not be judged.
    # open: all that is not given back now. first: how runs are rolled back that it waits for.
    $back = @{ goals = @(); kept = @(); waits = $false; missing = @(); open = @(); first = @() }
    $verdicts = @(foreach ($touched in $Run.record.touched) {
        $undo = New-WinhostUndo '' @{}
        # What was given back for good is others' by now, and needs nobody who can read it.
        if ($null -eq (Find-WinhostById $Run.record.given $touched.resource $touched.key)) {
            $undo = Find-WinhostUndoOf $touched $Run.record $Facts
        }
        @{ touched = $touched; undo = $undo; used = @() }
    })
    # Whatever is kept also keeps what it depends on.
    do {
        $more = $false
        foreach ($each in $verdicts) {
            if (-not (Test-WinhostGoes $each)) {
                continue
            }
            $found = Find-WinhostKeptFor $each.touched $verdicts $Facts
            if ($found.lacks -cne '') {
                # Names that were found before that say nothing: what could not be read may be this run's own.
                $each.undo = New-WinhostLacks $found.lacks
                $more = $true
                continue
            }
            $each.used = $found.names
            $more = $more -or $found.names.Count -gt 0
        }
    } while ($more)
    $marks = @(foreach ($line in @((Read-WinhostOnly 'RunMarks').marks)) { Read-WinhostMark $line })
    foreach ($each in $verdicts) {
        $touched = $each.touched
        $thing = @{ resource = $touched.resource; key = $touched.key }
        if ($each.used.Count -gt 0) {
            $back.open += $thing
            $back.waits = $true
            $back.kept += "$($touched.title): kept: for $($each.used -join ', '), which came later; undo that, then do this again"
            continue
        }
        if ($each.undo.lacks -cne '') {
            if (-not (Test-WinhostGoesAlong $touched $verdicts $Facts)) {
                $back.open += $thing
                $back.missing += [ordered]@{ title = $touched.title; resource = $touched.resource; key = $touched.key; why = $each.undo.lacks }
            }
            continue
        }
        $movers = @(Find-WinhostMovers $Run $each $marks $Facts)
        if ($movers.Count -gt 0) {
            $back.open += $thing
            $back.waits = $true
            $back.first += @(foreach ($mover in $movers) { $mover.rollback })
            $runs = @(Select-WinhostFirst @(foreach ($mover in $movers) { $mover.title })) -join ', '
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
    $back.kept = @(ConvertTo-WinhostWithNames $back.kept)
    $back
}

function ConvertTo-WinhostWithNames {
    param($Sentences)
    # VMs by their names, where the host tells those, and no two have the same. In one go: what a VM is called is never
    # taken for another one.
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

function Test-WinhostGoes {
    param($Verdict)
    $Verdict.used.Count -eq 0 -and $Verdict.undo.lacks -ceq '' -and $Verdict.undo.desired.Count -gt 0
}

# ---- what came later, from another run or by hand, stands on what this run made: to undo that would break it

function Find-WinhostKeptFor {
    param($Touched, $Verdicts, $Facts)
    # The names of dependents that are newer than the change; or why they cannot be told.
    $kept = @{ names = @(); lacks = Find-WinhostUnreadPart $Touched $Verdicts $Facts }
    $known = @($Touched.users) + @(foreach ($user in $Touched.dependents) { $user })
    foreach ($user in @(Find-WinhostUsers $Touched.resource $Touched.key $Facts)) {
        if ($user.lacks -cne '' -and $user.since -and ($null -eq $Touched.dependents -or (Test-WinhostOfOurs $Touched $Verdicts))) {
            # Nothing was seen to hold it against; or it goes along with a distro, which is exported first.
            continue
        }
        if ($user.lacks -cne '') {
            $kept.lacks = $user.lacks
        }
        if ($kept.lacks -cne '') {
            return $kept
        }
        $own = @(foreach ($each in $Verdicts) { if ($null -ne (Find-WinhostById @($each.touched) $user.resource $user.key)) { $each } })
        if ($own.Count -gt 0) {
            $kept.names += @(Find-WinhostOwnNames $own[0] $Touched $Facts)
        }
        elseif (-not (Test-WinhostKnown $user $known ($null -ne $Touched.dependents))) {
            if (Test-WinhostNameless $user $known $Verdicts) {
                $kept.lacks = "$(ConvertTo-WinhostTitle $user.resource): $(ConvertTo-WinhostWhy $Facts[$user.resource])"
                return $kept
            }
            $kept.names += ConvertTo-WinhostNamed $user $user.label
        }
    }
    # What this run created and others have removed depends on it again once they give it back.
    foreach ($rule in (ConvertFrom-Json -InputObject (Find-WinhostResource $Touched.resource).dependents -ErrorAction Stop)) {
        foreach ($each in $Verdicts) {
            if ($rule.lent -and $each.touched.resource -ceq $rule.resource -and (Test-WinhostRests $rule $Touched.key ([pscustomobject]$each.touched.after))) {
                $kept.names += @(Find-WinhostOwnNames $each $Touched $Facts)
            }
        }
    }
    $kept.names = @(Select-WinhostFirst $kept.names)
    $kept
}

function Find-WinhostUnreadPart {
    param($Whole, $Verdicts, $Facts)
    # Without the role nobody could give a VM back what cannot be read of it now.
    foreach ($each in $Verdicts) {
        $part = $each.touched
        if ($each.undo.lacks -cne '' -and (Find-WinhostResource $part.resource).requires -ceq $Whole.resource -and -not (Test-WinhostGoesAlong $part $Verdicts $Facts)) {
            return $each.undo.lacks
        }
    }
    ''
}

function Find-WinhostOwnNames {
    param($Verdict, $Whole, $Facts)
    # What this run changed itself counts where it stays for others, or is others' by now. But not in a distro that this
    # run made: with that goes also what somebody changed of what the run put there.
    if ($Verdict.used.Count -gt 0) {
        return $Verdict.used
    }
    if ((Test-WinhostIn $Verdict.touched $Whole) -and (Test-WinhostMade $Whole)) {
        return
    }
    if ($Verdict.undo.keep -cne '' -and -not (Test-WinhostGoes $Verdict) -and (Test-WinhostOthers $Verdict.touched $Facts)) {
        $Verdict.touched.title
    }
}

function Test-WinhostOthers {
    param($Touched, $Facts)
    # Neither as it was found nor as this run left it.
    if (-not $Facts[(Find-WinhostResource $Touched.resource).name].ok) {
        return $false
    }
    $now = Find-WinhostNow $Facts $Touched.resource $Touched.key
    foreach ($name in $Touched.changed) {
        $left = @(, (Read-WinhostProperty $Touched.before $name)) + @(, $Touched.after[$name])
        foreach ($state in $Touched.transitional) {
            if ($null -ne $state.PSObject.Properties[$name]) {
                $left += , (Read-WinhostProperty $state $name)
            }
        }
        if ($null -ne $now -and -not (Test-WinhostAmong (Read-WinhostProperty $now $name) $left)) {
            return $true
        }
    }
    $false
}

function Test-WinhostKnown {
    param($User, $Known, [bool]$Seen)
    # A dependent was there at the change or at the end of the run, in its present state if that counts.
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

function Test-WinhostNameless {
    param($User, $Known, $Verdicts)
    # Disks of distros that cannot be listed may be those of one that is known, also to this run.
    if ($null -eq $User.key.PSObject.Properties['distro'] -or $User.key.distro -cne '') {
        return $false
    }
    $unread = @(foreach ($each in $Verdicts) { if ($each.undo.lacks -cne '') { $each.touched } })
    foreach ($other in @($Known) + $unread) {
        if ($other.resource -ceq $User.resource -and $other.key.account -ceq $User.key.account) {
            return $true
        }
    }
    $false
}

function ConvertTo-WinhostNamed {
    param($User, [string]$Part)
    if ($Part -ceq '') {
        return ConvertTo-WinhostTitle $User.resource
    }
    if ($User.key.$Part -ceq '') {
        return "a distro of $($User.key.account)"
    }
    $User.key.$Part
}

# ---- what went along

function Test-WinhostGoesAlong {
    param($Part, $Verdicts, $Facts)
    # With something that this run had made, and has taken away or takes away now.
    foreach ($each in $Verdicts) {
        $whole = $each.touched
        if ((Test-WinhostIn $Part $whole) -and (Test-WinhostMade $whole)) {
            if ((Test-WinhostGoes $each) -or (Test-WinhostAsFound $whole $Facts)) {
                return $true
            }
        }
    }
    $false
}

function Test-WinhostOfOurs {
    param($Touched, $Verdicts)
    # A distro that this run made, or something in it.
    if ($Touched.resource -ceq 'WslDistro' -and (Test-WinhostMade $Touched)) {
        return $true
    }
    foreach ($each in $Verdicts) {
        if ((Test-WinhostIn $Touched $each.touched) -and (Test-WinhostMade $each.touched)) {
            return $true
        }
    }
    $false
}

function Test-WinhostIn {
    param($Part, $Whole)
    if ((Find-WinhostResource $Part.resource).within -cne $Whole.resource) {
        return $false
    }
    foreach ($name in @($Whole.key.PSObject.Properties)) {
        if ($null -ne $Part.key.PSObject.Properties[$name.Name] -and "$($Part.key.($name.Name))" -cne "$($name.Value)") {
            return $false
        }
    }
    $true
}

function Test-WinhostNamedBy {
    param($Whole, $Part)
    # A part of something that the run made, which went with it: a setting of a VM. A run that was cut off may never
    # have heard what that is called; then it may be this.
    $theirs, $own = "$((Find-WinhostResource $Whole.resource).known_as)" -split ' '
    if ($null -eq $own -or $null -eq $Part.key.PSObject.Properties[$theirs] -or -not (Test-WinhostMade $Whole)) {
        return $false
    }
    $null -eq $Whole.after[$own] -or "$($Part.key.$theirs)" -ceq "$($Whole.after[$own])"
}

function Test-WinhostMade {
    param($Whole)
    # Property by property: a host and a declaration do not name them in the same order.
    $absent = ConvertFrom-Json -InputObject (Find-WinhostResource $Whole.resource).absent -ErrorAction Stop
    $names = @(foreach ($property in @($Whole.before.PSObject.Properties)) { $property.Name })
    if ($null -eq $absent -or $names.Count -ne @($absent.PSObject.Properties).Count) {
        return $false
    }
    foreach ($name in $names) {
        if ($null -eq $absent.PSObject.Properties[$name] -or -not (Test-WinhostSame $Whole.before.$name $absent.$name)) {
            return $false
        }
    }
    $true
}

function Test-WinhostAsFound {
    param($Touched, $Facts)
    # Or was last seen so on the way back, where the way to it is gone by now.
    $states = $Touched.transitional
    if ($Facts[(Find-WinhostResource $Touched.resource).name].ok) {
        $states = @(Find-WinhostNow $Facts $Touched.resource $Touched.key)
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

function Find-WinhostUndoOf {
    param($Touched, $Record, $Facts)
    $answer = $Facts[(Find-WinhostResource $Touched.resource).name]
    if (-not $answer.ok) {
        return Find-WinhostUndoUnread $Touched $Record $Facts $answer
    }
    $now = Find-WinhostNow $Facts $Touched.resource $Touched.key
    if ($null -eq $now) {
        $made = @(foreach ($whole in $Record.touched) { if (Test-WinhostNamedBy $whole $Touched) { $whole } })
        return New-WinhostUndo (@('it is not there any more', '')[[int]($made.Count -gt 0)]) @{}
    }
    $undo = Find-WinhostUndo $Touched $now
    if ($undo.desired.Count -gt 0 -and (Find-WinhostResource $Touched.resource).within -cne '') {
        $found = @(Find-WinhostWhole $Touched $Facts)
        if ($found.Count -eq 0) {
            return Find-WinhostUndoGone $Touched $Record
        }
        if ($found[0].lacks -cne '') {
            return New-WinhostLacks $found[0].lacks
        }
    }
    $undo
}

function Find-WinhostWhole {
    param($Touched, $Facts)
    # What it lies in; nothing where there is no such distro any more.
    $parts = @(foreach ($part in @('account', 'distro')) { if ($null -ne $Touched.key.PSObject.Properties[$part]) { $part } })
    $rule = [pscustomobject]@{ resource = (Find-WinhostResource $Touched.resource).within; on = $parts; at = $null; unless = $null; since = $null; disks = $true; label = 'account' }
    Find-WinhostUsersBy $rule $Touched.key $Facts
}

function Find-WinhostUndoGone {
    param($Touched, $Record)
    # It went with what this run had made, or with somebody else's.
    $made = @(foreach ($whole in $Record.touched) { if ((Test-WinhostIn $Touched $whole) -and (Test-WinhostMade $whole)) { $whole } })
    New-WinhostUndo (@('it is not there any more', '')[[int]($made.Count -gt 0)]) @{}
}

function Find-WinhostUndoUnread {
    param($Touched, $Record, $Facts, $Answer)
    $until = "$(Read-WinhostField $Answer 'unavailable')"
    # What is there only since we installed the role went with it, once we are on the way back from that.
    $ours = @(foreach ($other in $Record.touched) { if ($Record.back -and @($other.transitional).Count -gt 0) { $other.resource } })
    if ($until -cne '' -and $ours -ccontains $until) {
        return New-WinhostUndo '' @{}
    }
    $row = Find-WinhostResource $Touched.resource
    $rule = ConvertFrom-Json -InputObject $row.undo -ErrorAction Stop
    if ($until -cne '' -and $until -ceq $row.requires -and (Read-WinhostField $rule 'ends_with_required')) {
        # No VM runs without the role, whoever removed it.
        return New-WinhostUndo '' @{}
    }
    # What lay in a distro is gone for certain where there is no such distro.
    if ($until -cne '' -and $row.within -cne '' -and @(Find-WinhostWhole $Touched $Facts).Count -eq 0) {
        return Find-WinhostUndoGone $Touched $Record
    }
    New-WinhostLacks "$(ConvertTo-WinhostTitle $Touched.resource): $(ConvertTo-WinhostWhy $Answer)"
}

function Split-WinhostParts {
    param($Goals)
    # What needs no restart first: without the role there would be no VM left to give its settings back to.
    foreach ($late in @($false, $true)) {
        $part = @(foreach ($goal in $Goals) { if ((Find-WinhostResource $goal.resource).restarts -eq $late) { $goal } })
        if ($part.Count -gt 0) {
            , $part
        }
    }
}

function Complete-WinhostRollback {
    param($Run, $Facts)
    $back = Find-WinhostBack $Run $Facts
    $left = @(foreach ($check in @(Test-WinhostGoals $back.goals $Facts)) { if (-not $check.holds) { $check } })
    $open = $left.Count + $back.missing.Count -gt 0
    $partly = $back.waits -and -not $open
    $outcome = @('rolled back', 'not all rolled back')[[int]$open]
    if ($partly) {
        $outcome = 'partly rolled back'
    }
    $still = @()
    if ($outcome -cne 'rolled back') {
        $still = @($back.open)
    }
    Remove-WinhostRunMarks $Run $still
    Write-WinhostEntry $Run 'outcome' ([ordered]@{ outcome = $outcome; open = @($back.open) })
    $next = @()
    $first = @(Select-WinhostFirst $back.first)
    if ($partly -and $first.Count -gt 0) {
        $next += "Roll back the rest: $($first -join ', then '), then .\Rollback.ps1"
    }
    elseif ($partly) {
        $next += 'Undo what came later, then go on with the rollback: .\Rollback.ps1'
    }
    elseif ($null -ne $Run.older) {
        $next += 'An earlier run of this plan stands as well. To undo that too: .\Rollback.ps1 once more.'
    }
    if ($back.missing.Count -gt 0) {
        $next += 'Mend what could not be read, or bring back what has to be there first; then go on with going back: .\Rollback.ps1'
    }
    $told = @(foreach ($lacks in $back.missing) { "$($lacks.title): not judged: $($lacks.why)" })
    $result = New-WinhostOutcome $Run $outcome $left (@($back.kept) + $told) $next
    $result.document.kept = @($back.kept)
    $result.document['missing'] = @($back.missing)
    if ($partly -or $back.missing.Count -gt 0) {
        $result.exit_code = 1
    }
    $result
}
