# Apply.ps1: the steps of the plan

function Invoke-WinhostApply {
    param($Run)
    Resume-WinhostApply $Run
    if ($script:WhatIf) {
        $facts = Read-WinhostHost
        Show-WinhostReadAs $facts
        Assert-WinhostNoDrift $Run $facts
        return New-WinhostPreview $Run @(Find-WinhostStageSteps $Run $facts) @()
    }
    if (Test-WinhostRestartDue $Run) {
        return Request-WinhostRestart $Run
    }
    $facts = Read-WinhostHost
    if (-not $Run.record.stage) {
        Assert-WinhostNoDrift $Run $facts
        Invoke-WinhostSteps $Run @(Find-WinhostStageSteps $Run $facts) $facts
        if ($Run.record.restart) {
            return Request-WinhostRestart $Run
        }
        if ($null -ne $Run.stream) {
            Write-WinhostEntry $Run 'stage' @{ number = $Run.stage.number }
        }
        $facts = Read-WinhostHost
    }
    Write-WinhostDependents $Run $facts
    Complete-WinhostApply $Run @(Test-WinhostGoals $Run.stage.desired $facts)
}

function Write-WinhostDependents {
    param($Run, $Facts)
    # The dependents of what was changed so far: on the way back, newer ones are told from them.
    $told = @(foreach ($touched in $Run.record.touched) {
        if ($null -eq $touched.dependents -and (Find-WinhostResource $touched.resource).dependents -cne '[]') {
            $users = ConvertTo-WinhostUsers $touched.resource $touched.key $Facts
            $later = @(foreach ($rule in (ConvertFrom-Json -InputObject (Find-WinhostResource $touched.resource).dependents -ErrorAction Stop)) {
                if ($null -ne $rule.since -and -not $Facts[$rule.resource].ok) {
                    $rule
                }
            })
            if ($null -ne $users -and $later.Count -eq 0) {
                [ordered]@{ resource = $touched.resource; key = $touched.key; users = @($users) }
            }
        }
    })
    if ($told.Count -gt 0) {
        Write-WinhostEntry $Run 'dependents' @{ resources = $told }
    }
}

function Resume-WinhostApply {
    param($Run)
    # A run of this plan that did not come to its end is gone on with; what has ended is followed by a new run.
    $mine = @(foreach ($journal in @(Find-WinhostJournals $Run)) { if ($journal.sum -ceq $Run.sum) { $journal.path } })
    [array]::Reverse($mine)
    foreach ($path in $mine) {
        $journal = Read-WinhostJournal $path
        if ($journal.entries -eq 0) {
            # Begun, nothing done.
            continue
        }
        if ($journal.record.back -and @('rolled back', 'partly rolled back') -cnotcontains $journal.record.outcome) {
            Stop-WinhostScript 2 'OneWay' 'the last run of this plan is going back' 'Nothing was changed.' '.\Rollback.ps1'
        }
        if ($journal.record.outcome -ceq '') {
            Open-WinhostJournal $Run $path
        }
        return
    }
}

function Find-WinhostStageSteps {
    param($Run, $Facts)
    # The plan's steps that are not so yet, in its order. A VM is shut down only if one of them must see it off.
    $vms = @(Find-WinhostVmsOff $Run $Facts)
    $met = @()
    foreach ($step in @($Run.stage.steps)) {
        $id = ConvertTo-WinhostId $step.resource $step.key
        $change = Select-WinhostChange $step $Facts
        if ($step.role -ceq 'need' -and $vms -cnotcontains $step.key.vm -and $null -ne (Find-WinhostByRole $Run 'restore' $step.resource $step.key)) {
            continue
        }
        if ($step.role -ceq 'need' -and $null -ne $change) {
            $met += $id
        }
        if ($step.role -ceq 'restore' -and $met -ccontains $id) {
            $change = Select-WinhostPlanned $step
        }
        elseif ($step.role -ceq 'restore' -and -not (Test-WinhostToRestore $Run $step)) {
            continue
        }
        if ($null -ne $change) {
            New-WinhostStep $step $step.role $change $step.risks
        }
    }
}

function Find-WinhostVmsOff {
    param($Run, $Facts)
    # The VMs that have to be off for what is not so yet.
    foreach ($step in @($Run.stage.steps)) {
        if ($step.role -ceq 'desired') {
            $change = Select-WinhostChange $step $Facts
            if ($null -ne $change) {
                Find-WinhostVmsToStop $step $change
            }
        }
    }
}

function Find-WinhostByRole {
    param($Run, [string]$Role, [string]$Resource, $Key)
    foreach ($step in @(Find-WinhostById $Run.stage.steps $Resource $Key)) {
        if ($step.role -ceq $Role) {
            $step
        }
    }
}

function Select-WinhostPlanned {
    param($Step)
    $change = @{ before = [ordered]@{}; desired = [ordered]@{} }
    foreach ($name in @('before', 'desired')) {
        Copy-WinhostState $Step.$name $change.$name
    }
    $change
}

function Test-WinhostToRestore {
    param($Run, $Step)
    # It is wanted in any case; or this run moved it for other steps, and did not give it back yet.
    if ($null -ne (Find-WinhostById $Run.stage.desired $Step.resource $Step.key)) {
        return $true
    }
    foreach ($touched in @(Find-WinhostById $Run.record.touched $Step.resource $Step.key)) {
        foreach ($name in $touched.changed) {
            if ($touched.transitional.Count -gt 0 -or -not (Test-WinhostSame $touched.after[$name] (Read-WinhostProperty $touched.before $name))) {
                return $true
            }
        }
    }
    $false
}

function Assert-WinhostNoDrift {
    param($Run, $Facts)
    # A request must stand where the plan saw it, or already where it shall be; a need only where it was seen, or it would
    # be given back to what it no longer is. What this run moved itself may differ.
    $lines = @()
    foreach ($step in @($Run.stage.steps)) {
        $touched = Find-WinhostById $Run.record.touched $step.resource $step.key
        if ($step.role -ceq 'restore' -or $null -ne $touched) {
            continue
        }
        $now = Find-WinhostNow $Facts $step.resource $step.key
        foreach ($property in @($step.before.PSObject.Properties)) {
            $found = Read-WinhostProperty $now $property.Name
            $desired = Read-WinhostProperty $step.desired $property.Name
            $there = $step.role -cne 'need' -and (Test-WinhostSame $found $desired)
            if (-not $there -and -not (Test-WinhostSame $found $property.Value)) {
                $lines += "$($step.title): $($property.Name) was $(ConvertTo-WinhostShown $property.Value), is $(ConvertTo-WinhostShown $found)"
            }
        }
    }
    $lines += @(Find-WinhostUnseen $Run $Facts)
    if ($lines.Count -eq 0) {
        $lines = @(Find-WinhostStarted $Run $Facts)
    }
    if ($lines.Count -gt 0) {
        Stop-WinhostScript 4 'Drifted' 'the host is no longer as the plan saw it; nothing was changed' $lines 'Read it again with Facts.ps1 and plan again.'
    }
}

function Find-WinhostUnseen {
    param($Run, $Facts)
    # What no step of the plan shows must be so already: nothing is changed that its reader has not seen.
    foreach ($goal in @($Run.stage.desired)) {
        if ($null -ne (Find-WinhostById $Run.record.touched $goal.resource $goal.key)) {
            continue
        }
        $shown = @(foreach ($step in @(Find-WinhostById $Run.stage.steps $goal.resource $goal.key)) {
            foreach ($property in @($step.desired.PSObject.Properties)) {
                $property.Name
            }
        })
        $now = Find-WinhostNow $Facts $goal.resource $goal.key
        foreach ($property in @($goal.desired.PSObject.Properties)) {
            $found = Read-WinhostProperty $now $property.Name
            if ($shown -cnotcontains $property.Name -and -not (Test-WinhostSame $found $property.Value)) {
                "$($goal.title): $($property.Name) was $(ConvertTo-WinhostShown $property.Value), is $(ConvertTo-WinhostShown $found)"
            }
        }
    }
}

function Find-WinhostStarted {
    param($Run, $Facts)
    # A VM that the plan saw off has no step that shuts it down: started since, it is not ours to stop.
    foreach ($vm in @(Find-WinhostVmsOff $Run $Facts | Sort-Object -Unique)) {
        $key = [pscustomobject]@{ vm = $vm }
        $now = Find-WinhostNow $Facts 'VmPower' $key
        if ($null -ne $now -and $now.state -cne 'off' -and $null -eq (Find-WinhostByRole $Run 'need' 'VmPower' $key)) {
            $title = "VmPower of $vm"
            foreach ($step in @(Find-WinhostById $Run.stage.steps 'VmPower' $key)) {
                $title = $step.title
            }
            "${title}: state was off, is $($now.state)"
        }
    }
}

function Complete-WinhostApply {
    param($Run, $Checks)
    $outcome = @('applied', 'differs')[[int](Test-WinhostLacking $Checks)]
    if ($null -ne $Run.stream) {
        Write-WinhostEntry $Run 'outcome' @{ outcome = $outcome }
    }
    elseif ($outcome -ceq 'applied') {
        $outcome = 'nothing to do'
    }
    $next = @()
    if ($Run.name -ne '') {
        $next += 'Go back at any time: .\Rollback.ps1'
    }
    if ($Run.linux -gt 0) {
        $next += 'What is left is of its Linux. Copy the folder linux there, and as root: python3 -I linux/run.py apply'
    }
    elseif (@($Run.stage.deferred).Count -gt 0) {
        $next += 'What could not be read before this can be planned now: carry what Facts.ps1 says back, and plan again.'
        $waiting = @(foreach ($waits in @($Run.stage.deferred)) { if ($script:WinhostLinux -cnotcontains $waits.resource) { $waits } })
        if ($waiting.Count -eq 0) {
            $next += 'It is of its Linux, which adds to that file first. There, as root: python3 -I linux/run.py facts'
        }
    }
    New-WinhostOutcome $Run $outcome $Checks @() $next
}
