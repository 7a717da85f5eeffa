# Apply.ps1: the steps of the plan

function Invoke-WinhostApply {
    param($Run)
    Resume-WinhostApply $Run
    if ($script:WhatIf) {
        $facts = Read-WinhostHost
        Show-WinhostWslAccounts $facts
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
    # Writes the dependents of the changed resources to the journal. Rollback compares later ones with them.
    $told = @(foreach ($touched in $Run.record.touched) {
        if ($null -eq $touched.dependents -and (Find-WinhostResource $touched.resource).dependents -cne '[]') {
            $users = ConvertTo-WinhostDependentEntries $touched.resource $touched.key $Facts
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
    # Continues the last run of this plan if it has not ended. Otherwise a new run starts.
    $mine = @(foreach ($journal in @(Find-WinhostJournals $Run)) { if ($journal.sum -ceq $Run.sum) { $journal.path } })
    [array]::Reverse($mine)
    foreach ($path in $mine) {
        $journal = Read-WinhostJournal $path
        if ($journal.entries -eq 0) {
            # A run that did nothing.
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
    # The steps of the plan that are not done yet, in its order. A VM is shut down only if one of them needs it off.
    $vms = @(Find-WinhostVmsNeededOff $Run $Facts)
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
        elseif ($step.role -ceq 'restore' -and -not (Test-WinhostNeedsRestore $Run $step)) {
            continue
        }
        if ($null -ne $change) {
            New-WinhostStep $step $step.role $change $step.risks
        }
    }
}

function Find-WinhostVmsNeededOff {
    param($Run, $Facts)
    # The VMs that have to be off for the remaining steps.
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

function Test-WinhostNeedsRestore {
    param($Run, $Step)
    # True if it is a goal of the plan, or if this run changed it for other steps and has not restored it yet.
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
    # A goal must have the state in the plan's facts, or already the desired one; a need must have that of the facts,
    # because it is restored to it. Resources that this run has changed may differ.
    $lines = @()
    foreach ($step in @($Run.stage.steps)) {
        $touched = Find-WinhostById $Run.record.touched $step.resource $step.key
        if ($step.role -ceq 'restore' -or $null -ne $touched) {
            continue
        }
        $now = Find-WinhostState $Facts $step.resource $step.key
        foreach ($property in @($step.before.PSObject.Properties)) {
            $found = Read-WinhostProperty $now $property.Name
            $desired = Read-WinhostProperty $step.desired $property.Name
            $there = $step.role -cne 'need' -and (Test-WinhostSame $found $desired)
            if (-not $there -and -not (Test-WinhostSame $found $property.Value)) {
                $lines += "$($step.title): $($property.Name) was $(ConvertTo-WinhostDisplayText $property.Value), is $(ConvertTo-WinhostDisplayText $found)"
            }
        }
    }
    $lines += @(Find-WinhostUnplannedDifferences $Run $Facts)
    if ($lines.Count -eq 0) {
        $lines = @(Find-WinhostStartedVms $Run $Facts)
    }
    if ($lines.Count -gt 0) {
        Stop-WinhostScript 4 'Drifted' 'the host is no longer as the plan saw it; nothing was changed' $lines 'Read it again with Facts.ps1 and plan again.'
    }
}

function Find-WinhostUnplannedDifferences {
    param($Run, $Facts)
    # A goal without a step in the plan must hold already: nothing is changed that the plan did not show.
    foreach ($goal in @($Run.stage.desired)) {
        if ($null -ne (Find-WinhostById $Run.record.touched $goal.resource $goal.key)) {
            continue
        }
        $shown = @(foreach ($step in @(Find-WinhostById $Run.stage.steps $goal.resource $goal.key)) {
            foreach ($property in @($step.desired.PSObject.Properties)) {
                $property.Name
            }
        })
        $now = Find-WinhostState $Facts $goal.resource $goal.key
        foreach ($property in @($goal.desired.PSObject.Properties)) {
            $found = Read-WinhostProperty $now $property.Name
            if ($shown -cnotcontains $property.Name -and -not (Test-WinhostSame $found $property.Value)) {
                "$($goal.title): $($property.Name) was $(ConvertTo-WinhostDisplayText $property.Value), is $(ConvertTo-WinhostDisplayText $found)"
            }
        }
    }
}

function Find-WinhostStartedVms {
    param($Run, $Facts)
    # A VM that was off when the plan was made has no step that shuts it down. If it was started since, it is not stopped.
    foreach ($vm in @(Find-WinhostVmsNeededOff $Run $Facts | Sort-Object -Unique)) {
        $key = [pscustomobject]@{ vm = $vm }
        $now = Find-WinhostState $Facts 'VmPower' $key
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
    $outcome = @('applied', 'differs')[[int](Test-WinhostAnyFailed $Checks)]
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
