# a run that applies or rolls back, and its result

function Start-WinhostRun {
    param([string]$Script)
    $run = $null
    try {
        $run = Open-WinhostRun $Script
        # Before the folder is created, which needs an administrator, and must not happen on another machine.
        Assert-WinhostHost $run.plan (-not $script:WhatIf)
        if (-not $script:WhatIf) {
            Protect-WinhostFolder $run.journals
            Lock-WinhostRun $run
            # A run that is continued by hand needs no task, and a task continues a run only once.
            Unregister-WinhostTask $run
        }
        if ($Script -ceq 'Apply.ps1') {
            $result = Invoke-WinhostApply $run
        }
        else {
            $result = Invoke-WinhostRollback $run
        }
    }
    catch {
        $result = ConvertTo-WinhostFailure $_
    }
    finally {
        Close-WinhostRun $run
    }
    Save-WinhostResult $run $result
    Show-WinhostResult $result
}

function Open-WinhostRun {
    param([string]$Script)
    Assert-WinhostUsage
    if ($script:GuestDeadline -notmatch '^[1-9][0-9]{0,4}\z' -or [int]$script:GuestDeadline -gt 86400) {
        Stop-WinhostScript 2 'Usage' "-GuestDeadline: $($script:GuestDeadline) is no number of seconds from 1 to 86400" 'Nothing was changed.' ''
    }
    $accepted = @(Split-WinhostConsents $script:Accept)
    $run = Open-WinhostPlan $Script
    $run.accepted = $accepted
    $run.within = [int]$script:GuestDeadline
    $run.journals = Find-WinhostJournalFolder
    $run.changed = 0
    $run.name = ''
    $run.older = $null
    $run.lock = $null
    $run.stream = $null
    $run.previous = ''
    $run.entries = 0
    $run.record = New-WinhostRecord
    $run
}

function New-WinhostOutcome {
    param($Run, [string]$Outcome, $Checks, $Kept, $Next)
    $code = 4 * [int](Test-WinhostAnyFailed $Checks)
    $document = [ordered]@{
        schema = 'winhost.bundle-result/2'
        host = $Run.plan.host
        machine_id = $Run.plan.machine_id
        run = $Run.name
        outcome = $Outcome
        changed = $Run.changed
        checks = @($Checks)
        kept = @($Kept)
        next = @($Next)
    }
    $lines = @("$($Run.plan.host): $Outcome, changes: $($Run.changed)")
    $lines += @(ConvertTo-WinhostCheckLines $Checks $false)
    $lines += @(foreach ($line in @($Kept) + @($Next)) { "  $line" })
    @{ exit_code = $code; document = $document; lines = $lines }
}

function New-WinhostPreview {
    param($Run, $Steps, $Kept)
    $next = @()
    $lacking = @(foreach ($risk in @(Find-WinhostMissingConsents $Run $Steps)) { $risk.name })
    if ($lacking.Count -gt 0) {
        $next += "Consents that lack: -Accept $($lacking -join ',')"
    }
    if ($Run.record.restart) {
        $next += 'The host has to restart before anything else.'
    }
    $result = New-WinhostOutcome $Run 'nothing was changed' @() $Kept $next
    $result.document['steps'] = @($Steps)
    $lines = @(ConvertTo-WinhostStepLines $Steps)
    if ($lines.Count -eq 0) {
        $lines = @('Nothing to do.')
    }
    $lines += "$($Run.plan.host): nothing was changed."
    $result.lines = $lines + @(foreach ($line in @($Kept) + $next) { "  $line" })
    $result
}

function Save-WinhostResult {
    param($Run, $Result)
    # Writes the result to a file next to the journal.
    if ($null -ne $Run -and $Run.name -ne '' -and -not $script:WhatIf) {
        try {
            [System.IO.File]::WriteAllText((Find-WinhostResultFile $Run), (ConvertTo-WinhostText $Result.document))
        }
        catch {
            # If the disk is full, for example, the result is still shown.
            Show-WinhostLine "$(Find-WinhostResultFile $Run) could not be written: $($_.Exception.Message)"
        }
    }
}

function Find-WinhostResultFile {
    param($Run)
    Join-WinhostPath $Run.journals "$($Run.name).result.json"
}

# ---- consents

function Split-WinhostConsents {
    param([string[]]$Words)
    # powershell.exe -File passes "a,b" as one argument.
    $given = @(foreach ($word in @($Words -split ',')) { if ($word.Trim() -ne '') { $word.Trim() } })
    $known = @(foreach ($risk in $script:WinhostRisks) { $risk.name })
    foreach ($word in $given) {
        if ($known -cnotcontains $word) {
            Stop-WinhostScript 2 'UnknownRisk' "-Accept: $word is none of: $($known -join ', ')" 'Nothing was changed.' ''
        }
    }
    $given
}

function Find-WinhostMissingConsents {
    param($Run, $Steps)
    $needed = @(foreach ($step in $Steps) { $step.risks })
    foreach ($risk in $script:WinhostRisks) {
        if ($needed -ccontains $risk.name -and $Run.accepted -cnotcontains $risk.name) {
            $risk
        }
    }
}

function Assert-WinhostConsents {
    param($Run, $Steps)
    $lacking = @(Find-WinhostMissingConsents $Run $Steps)
    if ($lacking.Count -gt 0) {
        $names = @(foreach ($risk in $lacking) { $risk.name })
        $meaning = @(foreach ($risk in $lacking) { "$($risk.name): $($risk.meaning)" })
        Stop-WinhostScript 2 'ConsentNeeded' "this needs your consent: $($names -join ', ')" $meaning ".\$($Run.script) -Accept $(($Run.accepted + $names) -join ',')"
    }
}

# ---- restarts

function Test-WinhostRestartDue {
    param($Run)
    if (-not $Run.record.restart) {
        return $false
    }
    if ($null -eq $Run.record.boot -or $Run.record.boot -ceq (Read-WinhostSingle 'Boot').boot_id) {
        return $true
    }
    Wait-WinhostReady
    $facts = Read-WinhostHost
    $left = @(foreach ($touched in $Run.record.touched) {
        if ((Find-WinhostResource $touched.resource).restarts) {
            $now = Find-WinhostState $facts $touched.resource $touched.key
            if ($null -ne $now) {
                @{ resource = $touched.resource; key = $touched.key; after = $now }
            }
        }
    })
    Write-WinhostEntry $Run 'restarted' @{ left = $left }
    $false
}

function Wait-WinhostReady {
    # After a restart Windows first finishes its updates, and services start one after the other.
    $end = (Read-WinhostClock) + 1800
    do {
        $answer = Invoke-WinhostRequest @(@{ resource = 'Boot'; verb = 'get'; key = @{} }) $false
        $ready = $answer.ok -and (Test-WinhostSame $answer.state.logon_ready $true) -and (Test-WinhostSame $answer.state.servicing $false)
        if (-not $ready) {
            if ((Read-WinhostClock) -ge $end) {
                Stop-WinhostScript 1 'NotReady' 'Windows is still finishing its changes, half an hour after its restart' 'Nothing was done since.' 'When it has, run this again.'
            }
            Start-Sleep -Seconds 5 -ErrorAction Stop
        }
    } until ($ready)
}

function Request-WinhostRestart {
    param($Run)
    if ($null -eq $Run.record.boot) {
        Write-WinhostEntry $Run 'restarting' @{ boot_id = (Read-WinhostSingle 'Boot').boot_id }
    }
    $again = ".\$($Run.script)"
    if ($Run.accepted.Count -gt 0) {
        $again += " -Accept $($Run.accepted -join ',')"
    }
    $next = "Restart this host, then go on: $again"
    if ($script:ContinueAfterRestart) {
        Register-WinhostTask $Run
        $answer = Invoke-WinhostRequest @(@{ resource = 'Boot'; verb = 'restart' }) $false
        if (-not $answer.ok) {
            Stop-WinhostScript 1 'RestartRefused' "the host does not restart: $(ConvertTo-WinhostFaultText $answer)" '' 'Restart it; it goes on by itself.'
        }
        $next = "The host restarts now and goes on by itself; how that ends will stand in $(Find-WinhostResultFile $Run)"
    }
    $result = New-WinhostOutcome $Run 'restart needed' @() @() @($next)
    $result.exit_code = 3010
    $result
}

function Register-WinhostTask {
    param($Run)
    # The task runs as SYSTEM, so it uses a copy that only administrators can change, and checks the sums again.
    # Without -ContinueAfterRestart: if a host needs another restart, a person should check it.
    $copy = Join-WinhostPath $Run.journals $Run.sum
    $null = [System.IO.Directory]::CreateDirectory($copy)
    foreach ($name in $script:WinhostFiles + 'SHA256SUMS') {
        $source = Join-WinhostPath $PSScriptRoot $name
        $target = Join-WinhostPath $copy $name
        if ($PSScriptRoot -ne $copy -and [System.IO.File]::Exists($source)) {
            $null = [System.IO.Directory]::CreateDirectory([System.IO.Path]::GetDirectoryName($target))
            [System.IO.File]::Copy($source, $target, $true)
        }
    }
    Assert-WinhostSums $copy @($Run.script, 'Winhost.ps1', 'plan.json')
    $policy = Get-ExecutionPolicy -ErrorAction Stop
    $words = "-NoProfile -NonInteractive -ExecutionPolicy $policy -File ""$(Join-WinhostPath $copy $Run.script)"" -JournalFolder ""$($Run.journals)"" -GuestDeadline $($Run.within)"
    if ($Run.accepted.Count -gt 0) {
        $words += " -Accept $($Run.accepted -join ',')"
    }
    $null = Register-WinhostStartTask "winhost-$($Run.sum)" $words
}

function Unregister-WinhostTask {
    param($Run)
    # Without the copy there is no task.
    if ($null -ne (Read-WinhostAttributes (Join-WinhostPath $Run.journals $Run.sum))) {
        Unregister-WinhostStartTask "winhost-$($Run.sum)"
    }
}
