# the steps of a rollback: their order, the VMs that have to be off for them, and their consents

function Find-WinhostUndoSteps {
    param($Run, $Goals, $Facts)
    $rows = @(Find-WinhostUndoRows $Goals $Facts)
    # Titles of needs come from the changed resources of this run.
    $moves = @(Find-WinhostPowerMoves $rows $Goals $Facts $Run.record.touched)
    $needed = @(foreach ($move in $moves) { $move.id })
    $rows = @(foreach ($row in $rows) { if ($needed -cnotcontains $row.id) { $row } })
    # A VM is shut down before the first step that needs it off, and gets its power state back after the last one.
    for ($number = 0; $number -lt $rows.Count; $number++) {
        foreach ($move in $moves) {
            if ($null -ne $move.off -and (Find-WinhostFirstRow $rows $move.vm) -eq $number) {
                New-WinhostUndoStep $move.goal 'need' $move.off
            }
        }
        New-WinhostUndoStep $rows[$number].goal 'undo' $rows[$number].change
        for ($last = $moves.Count - 1; $last -ge 0; $last--) {
            $move = $moves[$last]
            if ($null -ne $move.back -and (Find-WinhostLastRow $rows $move.vm) -eq $number) {
                New-WinhostUndoStep $move.goal 'restore' $move.back
            }
        }
    }
    foreach ($move in $moves) {
        # For a VM that is off already, only its own goal remains.
        if ($null -eq $move.off -and $null -ne $move.own) {
            New-WinhostUndoStep $move.goal 'undo' $move.own
        }
    }
}

function New-WinhostUndoStep {
    param($Goal, [string]$Role, $Change)
    New-WinhostStep $Goal $Role $Change @(Find-WinhostConsents $Goal $Change)
}

function Find-WinhostUndoRows {
    param($Goals, $Facts)
    # In reverse order of resources, then by the values of the key, compared independently of the language.
    $rows = New-Object -TypeName System.Collections.SortedList -ArgumentList ([System.StringComparer]::Ordinal)
    foreach ($goal in @($Goals)) {
        $order = 999 - (Find-WinhostResource $goal.resource).order
        $words = @(foreach ($part in @($goal.key.PSObject.Properties)) { "$($part.Value)" }) -join "`0"
        $change = Select-WinhostChange $goal $Facts
        if ($null -ne $change) {
            $rows['{0:d3} {1}' -f $order, $words] = @{
                id = ConvertTo-WinhostId $goal.resource $goal.key
                goal = $goal
                change = $change
                vms = @(Find-WinhostVmsToStop $goal $change)
            }
        }
    }
    $rows.Values
}

function Find-WinhostPowerMoves {
    param($Rows, $Goals, $Facts, $Known)
    # The VMs that have to be off for these rows, each once, with their changes of power state before and after.
    $done = @()
    foreach ($vm in @(foreach ($row in $Rows) { $row.vms })) {
        if ($done -cnotcontains $vm) {
            $done += $vm
            New-WinhostPowerMove $vm $Goals $Facts $Known
        }
    }
}

function New-WinhostPowerMove {
    param([string]$Vm, $Goals, $Facts, $Known)
    $goal = [pscustomobject]@{ resource = 'VmPower'; key = [pscustomobject]@{ vm = $Vm }; desired = [pscustomobject]@{ state = 'off' }; title = "VmPower of $Vm" }
    foreach ($known in @(Find-WinhostById $Known 'VmPower' $goal.key)) {
        $goal.title = $known.title
    }
    $move = @{ id = ConvertTo-WinhostId 'VmPower' $goal.key; vm = $Vm; goal = $goal; off = $null; back = $null; own = $null }
    if ($null -ne (Find-WinhostState $Facts 'VmPower' $goal.key)) {
        $move.off = Select-WinhostChange $goal $Facts
    }
    $end = 'off'
    if ($null -ne $move.off) {
        $end = $move.off.before.state
    }
    foreach ($own in @(Find-WinhostById $Goals 'VmPower' $goal.key)) {
        $end = $own.desired.state
        $move.own = Select-WinhostChange $own $Facts
    }
    if ($null -ne $move.off -and $end -cne 'off') {
        $move.back = @{ before = [ordered]@{ state = 'off' }; desired = [ordered]@{ state = $end } }
    }
    $move
}

function Find-WinhostFirstRow {
    param($Rows, [string]$Vm)
    for ($number = 0; $number -lt $Rows.Count; $number++) {
        if ($Rows[$number].vms -ccontains $Vm) {
            return $number
        }
    }
}

function Find-WinhostLastRow {
    param($Rows, [string]$Vm)
    for ($number = $Rows.Count - 1; $number -ge 0; $number--) {
        if ($Rows[$number].vms -ccontains $Vm) {
            return $number
        }
    }
}
