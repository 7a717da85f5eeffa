# the steps back: their order, the VMs that have to be off for them, and what they ask for

function Find-WinhostUndoSteps {
    param($Run, $Goals, $Facts)
    $rows = @(Find-WinhostRows $Goals $Facts)
    # What this run touched has the titles of things that are needed without being put back.
    $moves = @(Find-WinhostMoves $rows $Goals $Facts $Run.record.touched)
    $needed = @(foreach ($move in $moves) { $move.id })
    $rows = @(foreach ($row in $rows) { if ($needed -cnotcontains $row.id) { $row } })
    # A VM is shut down before the first step that must see it off, and gets its power after the last one.
    for ($number = 0; $number -lt $rows.Count; $number++) {
        foreach ($move in $moves) {
            if ($null -ne $move.off -and (Find-WinhostFirst $rows $move.vm) -eq $number) {
                New-WinhostUndoStep $move.goal 'need' $move.off
            }
        }
        New-WinhostUndoStep $rows[$number].goal 'undo' $rows[$number].change
        for ($last = $moves.Count - 1; $last -ge 0; $last--) {
            $move = $moves[$last]
            if ($null -ne $move.back -and (Find-WinhostLast $rows $move.vm) -eq $number) {
                New-WinhostUndoStep $move.goal 'restore' $move.back
            }
        }
    }
    foreach ($move in $moves) {
        # One that is off already has only its own request left.
        if ($null -eq $move.off -and $null -ne $move.own) {
            New-WinhostUndoStep $move.goal 'undo' $move.own
        }
    }
}

function New-WinhostUndoStep {
    param($Goal, [string]$Role, $Change)
    New-WinhostStep $Goal $Role $Change @(Find-WinhostConsents $Goal $Change)
}

function Find-WinhostRows {
    param($Goals, $Facts)
    # Backwards by resource, then by the words of the key, compared the same way in every language.
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

function Find-WinhostMoves {
    param($Rows, $Goals, $Facts, $Known)
    # The VMs that have to be off for these rows, each once: how they get there, and what power they get afterwards.
    $done = @()
    foreach ($vm in @(foreach ($row in $Rows) { $row.vms })) {
        if ($done -cnotcontains $vm) {
            $done += $vm
            New-WinhostMove $vm $Goals $Facts $Known
        }
    }
}

function New-WinhostMove {
    param([string]$Vm, $Goals, $Facts, $Known)
    $goal = [pscustomobject]@{ resource = 'VmPower'; key = [pscustomobject]@{ vm = $Vm }; desired = [pscustomobject]@{ state = 'off' }; title = "VmPower of $Vm" }
    foreach ($known in @(Find-WinhostById $Known 'VmPower' $goal.key)) {
        $goal.title = $known.title
    }
    $move = @{ id = ConvertTo-WinhostId 'VmPower' $goal.key; vm = $Vm; goal = $goal; off = $null; back = $null; own = $null }
    if ($null -ne (Find-WinhostNow $Facts 'VmPower' $goal.key)) {
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

function Find-WinhostFirst {
    param($Rows, [string]$Vm)
    for ($number = 0; $number -lt $Rows.Count; $number++) {
        if ($Rows[$number].vms -ccontains $Vm) {
            return $number
        }
    }
}

function Find-WinhostLast {
    param($Rows, [string]$Vm)
    for ($number = $Rows.Count - 1; $number -ge 0; $number--) {
        if ($Rows[$number].vms -ccontains $Vm) {
            return $number
        }
    }
}
