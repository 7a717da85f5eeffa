# what this script does

function Invoke-WinhostRun {
    param($Run)
    Resume-WinhostRun $Run
    if (-not $script:WhatIf -and (Test-WinhostRestartDue $Run)) {
        return Request-WinhostRestart $Run
    }
    $facts = Wait-WinhostUndone $Run
    $back = Find-WinhostBack $Run $facts
    $parts = @(Split-WinhostParts $back.wishes)
    $steps = @(foreach ($part in $parts) { Find-WinhostUndoSteps $Run $part $facts })
    if ($script:WhatIf) {
        return New-WinhostPreview $Run $steps $back.kept
    }
    # All consents before the first step back, so that a refusal leaves the run as it was.
    Assert-WinhostConsents $Run $steps
    if (-not $Run.record.back) {
        Write-WinhostEntry $Run 'back' @{ accepted = @($Run.accepted) }
    }
    foreach ($part in $parts) {
        Invoke-WinhostSteps $Run @(Find-WinhostUndoSteps $Run $part $facts) $facts
        $facts = Read-WinhostHost
    }
    if ($Run.record.restart) {
        return Request-WinhostRestart $Run
    }
    Complete-WinhostRollback $Run $facts
}

function Resume-WinhostRun {
    param($Run)
    # The newest run of this plan that still stands, and nothing of another plan on top of it.
    $newest = $null
    $later = $null
    $never = $null
    foreach ($journal in @(Find-WinhostJournals $Run)) {
        $read = Read-WinhostJournal $journal.path
        $mine = $journal.sum -ceq $Run.sum
        $stands = $read.entries -gt 0 -and ($read.record.outcome -cne 'rolled back' -or $read.record.waits)
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
    $waiting = @(foreach ($touched in $Run.record.touched) { if ($touched.noun -ceq 'ExternalSwitch' -and -not $Run.record.back) { $touched } })
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
    # waits: some of it can be put back only when what came since is taken back.
    $back = @{ wishes = @(); kept = @(); waits = $false }
    $undone = @(foreach ($touched in $Run.record.touched) { @{ touched = $touched; undo = Find-WinhostUndoOf $touched $Run.record $Facts } })
    $taken = @(foreach ($each in $undone) { if ($each.undo.want.Count -gt 0) { $each.touched } })
    foreach ($each in $undone) {
        $touched = $each.touched
        $undo = Select-WinhostUnused $touched $each.undo $taken $Facts
        $back.waits = $back.waits -or $undo.want.Count -lt $each.undo.want.Count
        if ($undo.keep -cne '') {
            $back.kept += "$($touched.title): kept: $($undo.keep)"
        }
        if ($undo.want.Count -gt 0) {
            $back.wishes += [pscustomobject]@{ noun = $touched.noun; key = $touched.key; want = [pscustomobject]$undo.want; title = $touched.title }
        }
    }
    $back
}

function Select-WinhostUnused {
    param($Touched, $Undo, $Taken, $Facts)
    # What came since, from another run or by hand, stands on what this run made: to undo that would break it.
    if ($Undo.want.Count -eq 0 -or (Find-WinhostNoun $Touched.noun).users -ceq '') {
        return $Undo
    }
    $kinds = @{ devices = @('AssignableDevice'); wsl = @('Wsl', 'WslDistro'); distros = @('WslDistro', 'LocalAccount') }
    foreach ($kind in $kinds[(Find-WinhostNoun $Touched.noun).users]) {
        # Without WSL, or an account of winhost, there is no distro that could be known.
        $none = $kind -ceq 'WslDistro' -and $null -ne (Read-WinhostField $Facts[$kind] 'unavailable')
        if (-not $Facts[$kind].ok -and -not $none) {
            return @{ keep = ConvertTo-WinhostWhy $Facts[$kind]; want = @{} }
        }
    }
    $names = @{ AssignableDevice = 'location'; Wsl = ''; WslDistro = 'account' }
    $known = @($Taken) + @($Touched.users)
    $since = @(foreach ($user in @(Find-WinhostUsers $Touched.noun $Touched.key $Facts)) {
        if ($null -eq (Find-WinhostById $known $user.noun $user.key)) {
            if ($names[$user.noun] -ceq '') {
                $user.noun
            }
            else {
                $user.key.($names[$user.noun])
            }
        }
    })
    if ($since.Count -gt 0) {
        return @{ keep = "for $($since -join ', '), which came since; take that back, then this again"; want = @{} }
    }
    $Undo
}

function Find-WinhostUndoOf {
    param($Touched, $Record, $Facts)
    $answer = $Facts[(Find-WinhostNoun $Touched.noun).name]
    if (-not $answer.ok) {
        # What is there only since we installed the role went with it.
        $ours = @(foreach ($other in $Record.touched) { $other.noun })
        if ($ours -ccontains "$(Read-WinhostField $answer 'unavailable')") {
            return @{ keep = ''; want = @{} }
        }
        return @{ keep = ConvertTo-WinhostWhy $answer; want = @{} }
    }
    $now = Find-WinhostNow $Facts $Touched.noun $Touched.key
    if ($null -eq $now) {
        return @{ keep = 'it is not there any more'; want = @{} }
    }
    Find-WinhostUndo $Touched $now
}

function Find-WinhostUndo {
    param($Touched, $Now)
    # want: what is to be put back, perhaps nothing; keep: why it, or a part of it, is left as it is.
    $ours = $false
    $whole = $false
    $mended = @{}
    switch ((Find-WinhostNoun $Touched.noun).undo) {
        'place' {
            $known = @($Touched.before.place, $Touched.after.place)
            if ($Now.place -clike 'assigned:*' -and $known -cnotcontains $Now.place) {
                return @{ keep = "VM $($Now.place.Substring(9)) has it now"; want = @{} }
            }
            # Any lower rung of the ladder is still our doing.
            $ours = $true
        }
        'role' {
            $since = $Now.vms - $Touched.after.vms
            if ($since -gt 0) {
                return @{ keep = "$since VM(s) made since need it"; want = @{} }
            }
            # Between two restarts it is nobody else's state.
            $ours = @('install-pending', 'uninstall-pending') -ccontains $Now.role
        }
        'staged' {
            # What is there in part is nobody else's, and never put back.
            $ours = $null -eq $Now.present
            if ($null -eq (Read-WinhostField $Touched.before 'present')) {
                $Touched.before.present = $false
            }
        }
        'feature' {
            $ours = @('install-pending', 'uninstall-pending') -ccontains $Now.feature
        }
        'wsl' {
            $found = Read-WinhostField $Touched.before 'version'
            if ($Touched.changed -ccontains 'version' -and $null -ne $found -and $Now.version -cne $found) {
                return @{ keep = 'winhost never downgrades WSL'; want = @{} }
            }
        }
        'account' {
            $made = $Touched.changed -ccontains 'there' -and -not (Read-WinhostField $Touched.before 'there')
            if ($made -and $Now.there) {
                return Find-WinhostUndoOfAccount $Now
            }
        }
        'switch' {
            if ($null -ne $Now.adapter -and $Now.phase -ceq 'none') {
                return @{ keep = 'this switch is not the one that winhost made'; want = @{} }
            }
            if ($Now.vms -gt 0) {
                return @{ keep = "$($Now.vms) VM adapter(s) are connected to it"; want = @{} }
            }
        }
        'distro' {
            if ($Touched.changed -ccontains 'installed' -and -not (Read-WinhostField $Touched.before 'installed')) {
                return Find-WinhostUndoOfDistro $Touched $Now
            }
        }
        'vm' {
            $keep = ''
            if ($Now.running) {
                $keep = 'WSL reads the .wslconfig that was put back at its next start'
            }
            return @{ keep = $keep; want = @{} }
        }
        'tasks' {
            $ours = $true
            # To a password that nobody here knew, and to a script that is not kept, nothing goes back.
            $mended = [ordered]@{ logon = @('refused', 'they log on again'); jobs = @('stale', 'they run jobs again') }
        }
        'whole' {
            $whole = $true
            foreach ($property in @($Now.PSObject.Properties)) {
                if ($null -ne (Read-WinhostField $property.Value 'unavailable')) {
                    # It went with what it was in.
                    return @{ keep = ''; want = @{} }
                }
            }
        }
    }
    $want = [ordered]@{}
    $foreign = @()
    foreach ($name in $Touched.changed) {
        $there = Read-WinhostProperty $Now $name
        $before = Read-WinhostProperty $Touched.before $name
        if (Test-WinhostSame $there $before) {
            continue
        }
        $left = @(, $Touched.after[$name]) + @(foreach ($state in $Touched.moved) { , (Read-WinhostProperty $state $name) })
        if ($ours -or (Test-WinhostAmong $there $left)) {
            $want[$name] = $before
        }
        else {
            $foreign += $name
        }
    }
    $said = @(foreach ($name in @($mended.Keys)) {
        if ($want.Contains($name) -and $want[$name] -ceq $mended[$name][0]) {
            $want.Remove($name)
            $mended[$name][1]
        }
    })
    $keep = $said -join ' and '
    if ($foreign.Count -gt 0) {
        $keep = "$($foreign -join ', ') changed since by somebody else"
        if ($whole) {
            $want = @{}
        }
    }
    @{ keep = $keep; want = $want }
}

function Find-WinhostUndoOfAccount {
    param($Now)
    if (-not $Now.ours) {
        return @{ keep = 'it is not the account that winhost made any more'; want = @{} }
    }
    @{ keep = ''; want = [ordered]@{ there = $false } }
}

function Find-WinhostUndoOfDistro {
    param($Touched, $Now)
    $want = [ordered]@{}
    if (-not $Now.installed) {
        return @{ keep = ''; want = $want }
    }
    if ($null -eq $Now.image -or $Now.image -cne $Touched.after.image) {
        return @{ keep = 'it is not the distro that winhost made any more'; want = $want }
    }
    $want.installed = $false
    $want.image = $null
    if ($Now.running) {
        $want.running = $false
    }
    @{ keep = ''; want = $want }
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

function Split-WinhostParts {
    param($Wishes)
    # What needs no restart first: without the role there would be no VM left to give its settings back to.
    foreach ($late in @($false, $true)) {
        $part = @(foreach ($wish in $Wishes) { if ((Find-WinhostNoun $wish.noun).restarts -eq $late) { $wish } })
        if ($part.Count -gt 0) {
            , $part
        }
    }
}

function Find-WinhostUndoSteps {
    param($Run, $Wishes, $Facts)
    Find-WinhostSteps $Wishes $Facts 'undo' $Run.record.touched @()
}

function Complete-WinhostRollback {
    param($Run, $Facts)
    $back = Find-WinhostBack $Run $Facts
    $left = @(foreach ($check in @(Test-WinhostWishes $back.wishes $Facts)) { if (-not $check.holds) { $check } })
    $outcome = @('rolled back', 'not all rolled back')[[int]($left.Count -gt 0)]
    Write-WinhostEntry $Run 'outcome' ([ordered]@{ outcome = $outcome; waits = $back.waits })
    $next = @()
    if ($null -ne $Run.older) {
        $next += 'An earlier run of this plan stands as well. To undo that too: .\Rollback.ps1 once more.'
    }
    New-WinhostOutcome $Run $outcome $left $back.kept $next
}
