# the rules of resources from the table of resources: needs and consents of a change, and how it is undone

# winhost/core does the same in Python, from the same declarations.

function Test-WinhostConditions {
    param($Conditions, $States)
    # True if all conditions hold. States: tables of properties, by the names in a condition.
    foreach ($each in $Conditions) {
        if (-not (Test-WinhostCondition $each $States)) {
            return $false
        }
    }
    $true
}

function Test-WinhostCondition {
    param($Condition, $States)
    $name = "$(Read-WinhostField $Condition 'property')"
    $of = Find-WinhostStateOf $Condition
    if ($name -ceq '') {
        foreach ($any in $States[$of].Values) {
            if (Test-WinhostMatches $Condition $any $States) {
                return $true
            }
        }
        return $false
    }
    if ($of -ceq 'now' -and -not (Test-WinhostIsReadable $States $name)) {
        return $false
    }
    $States[$of].Contains($name) -and (Test-WinhostMatches $Condition $States[$of][$name] $States)
}

function Find-WinhostStateOf {
    param($Condition)
    $of = Read-WinhostField $Condition 'of'
    if ($null -eq $of) {
        return 'now'
    }
    $of
}

function Test-WinhostIsReadable {
    param($States, [string]$Name)
    # False if a property could not be read. The first one is recorded, and then rollback cannot decide.
    $found = $States.now[$Name]
    if ($null -eq (Read-WinhostField $found 'unknown')) {
        return $true
    }
    if ($States.missing -ceq '') {
        $States.missing = "$($States.title) (${Name}): $(ConvertTo-WinhostFaultText $found)"
    }
    $false
}

function Test-WinhostMatches {
    param($Condition, $Item, $States)
    $allowed = Read-WinhostProperty $Condition 'one_of'
    if ($null -ne $allowed -and -not (Test-WinhostIsAmong $Item $allowed)) {
        return $false
    }
    if (Test-WinhostIsAmong $Item (Read-WinhostProperty $Condition 'none_of')) {
        return $false
    }
    $start = "$(Read-WinhostField $Condition 'starts_with')"
    if ($start -cne '' -and -not (Test-WinhostStartsWith $Item $start)) {
        return $false
    }
    if ((Read-WinhostField $Condition 'unavailable') -and $null -eq (Read-WinhostField $Item 'unavailable')) {
        return $false
    }
    foreach ($other in (Read-WinhostProperty $Condition 'differs_from')) {
        if (Test-WinhostSame $Item $States[$other][$Condition.property]) {
            return $false
        }
    }
    -not (Read-WinhostField $Condition 'gained') -or (Find-WinhostGain $Item $States.after[$Condition.property]) -cne ''
}

function Test-WinhostStartsWith {
    param($Item, [string]$Start)
    $Item -is [string] -and $Item.StartsWith($Start, [System.StringComparison]::Ordinal)
}

function Find-WinhostGain {
    param($Item, $Before)
    # The increase of a number since the run, or the new elements of a list, as text; empty if there are none.
    if ($Item -is [array]) {
        $new = @(foreach ($each in $Item) { if (-not (Test-WinhostIsAmong $each $Before)) { $each } })
        $new = @(Select-WinhostUnique $new)
        [array]::Sort($new, [System.StringComparer]::Ordinal)
        return $new -join ', '
    }
    if ($Item -is [ValueType] -and $Item -isnot [bool] -and $Item -gt $Before) {
        return "$($Item - $Before)"
    }
    ''
}

function Select-WinhostUnique {
    param($Names)
    $seen = @()
    foreach ($name in $Names) {
        if ($seen -cnotcontains $name) {
            $seen += $name
            $name
        }
    }
}

# ---- needs and consents of a change

function Find-WinhostVmsToStop {
    param($Goal, $Change)
    $found = @(foreach ($rule in (ConvertFrom-Json -InputObject (Find-WinhostResource $Goal.resource).needs -ErrorAction Stop)) {
        $part = Read-WinhostField $rule 'key'
        if ($null -ne $part) {
            $Goal.key.$part
            continue
        }
        foreach ($state in @($Change.before, $Change.desired)) {
            $text = $state[$rule.property]
            if (Test-WinhostStartsWith $text $rule.starts_with) {
                $text.Substring($rule.starts_with.Length)
            }
        }
    })
    $found = @(Select-WinhostUnique $found)
    [array]::Sort($found, [System.StringComparer]::Ordinal)
    $found
}

function Find-WinhostConsents {
    param($Goal, $Change)
    $key = @{}
    Copy-WinhostState $Goal.key $key
    $states = @{ before = $Change.before; desired = $Change.desired; key = $key }
    $consents = @(foreach ($rule in (ConvertFrom-Json -InputObject (Find-WinhostResource $Goal.resource).risks -ErrorAction Stop)) {
        $unless = Read-WinhostProperty $rule 'unless'
        $exempt = $null -ne $unless -and (Test-WinhostConditions $unless $states)
        if (-not $exempt -and (Test-WinhostConditions (Read-WinhostProperty $rule 'when') $states)) {
            $rule.consent
        }
    })
    Select-WinhostUnique $consents
}

# ---- undo

function Find-WinhostUndo {
    param($Touched, $Now)
    # desired: the properties to restore, perhaps none; keep: why it, or a part of it, is kept; missing: the fact without
    # which neither can be decided.
    $rule = ConvertFrom-Json -InputObject (Find-WinhostResource $Touched.resource).undo -ErrorAction Stop
    $states = New-WinhostStates $Touched $Now
    foreach ($name in $Touched.changed) {
        $null = Test-WinhostIsReadable $states $name
    }
    $undo = Find-WinhostUndoByRule $rule $states
    if ($states.missing -cne '') {
        return New-WinhostUndecidedUndo $states.missing
    }
    $undo
}

function New-WinhostStates {
    param($Touched, $Now)
    # before: the values that the run replaced; after: as the run left them, or a transitional state.
    $states = @{ before = [ordered]@{}; after = @{}; now = [ordered]@{}; missing = ''; title = ConvertTo-WinhostTitle $Touched.resource }
    Copy-WinhostState $Now $states.now
    foreach ($name in @($Touched.after.Keys)) {
        $states.after[$name] = $Touched.after[$name]
    }
    foreach ($name in $Touched.changed) {
        $states.before[$name] = Read-WinhostProperty $Touched.before $name
        foreach ($state in $Touched.transitional) {
            if ($null -ne $state.PSObject.Properties[$name] -and (Test-WinhostSame (Read-WinhostProperty $state $name) $states.now[$name])) {
                $states.after[$name] = $states.now[$name]
            }
        }
    }
    $states
}

function New-WinhostUndo {
    param([string]$Keep, $Desired)
    @{ keep = $Keep; desired = $Desired; missing = '' }
}

function New-WinhostUndecidedUndo {
    param([string]$Why)
    # Without the missing fact it is neither kept nor restored.
    @{ keep = ''; desired = @{}; missing = $Why }
}

function Find-WinhostUndoByRule {
    param($Rule, $States)
    foreach ($conditions in (Read-WinhostProperty $Rule 'gone_if')) {
        if (Test-WinhostConditions $conditions $States) {
            return New-WinhostUndo '' @{}
        }
    }
    foreach ($unknown in (Read-WinhostProperty $Rule 'unknown_if')) {
        if (Test-WinhostConditions $unknown.when $States) {
            return New-WinhostUndecidedUndo "$($unknown.fact) cannot be told before $($unknown.until) is there"
        }
    }
    foreach ($keepIf in (Read-WinhostProperty $Rule 'keep_if')) {
        if (Test-WinhostConditions $keepIf.when $States) {
            return New-WinhostUndo (ConvertTo-WinhostReason $keepIf $States) @{}
        }
    }
    $absent = Read-WinhostField $Rule 'remove_if_created'
    $created = Test-WinhostCreated $absent $States
    if ($created -and -not (Read-WinhostField $Rule 'unless_changed')) {
        return New-WinhostUndo '' (Select-WinhostDifferingValues $absent $States)
    }
    $never = "$(Read-WinhostField $Rule 'never')"
    if ($never -cne '') {
        return New-WinhostUndo $never @{}
    }
    $undo = Find-WinhostUndoByProperty $Rule $States
    if ($created -and $undo.keep -ceq '' -and $undo.missing -ceq '') {
        return New-WinhostUndo '' (Select-WinhostDifferingValues $absent $States)
    }
    $undo
}

function ConvertTo-WinhostReason {
    param($KeepIf, $States)
    # Replaces the properties in braces by the values that the conditions found.
    $found = @{}
    foreach ($each in $KeepIf.when) {
        $name = "$(Read-WinhostField $each 'property')"
        $start = "$(Read-WinhostField $each 'starts_with')"
        $text = $States[(Find-WinhostStateOf $each)][$name]
        if (Read-WinhostField $each 'gained') {
            $text = Find-WinhostGain $text $States.after[$name]
        }
        elseif ($start -cne '') {
            $text = $text.Substring($start.Length)
        }
        $found[$name] = "$text"
    }
    [regex]::Replace($KeepIf.reason, '\{([a-z_]+)\}', { param($Part) $found[$Part.Groups[1].Value] })
}

function Test-WinhostCreated {
    param($Absent, $States)
    # True if it did not exist before the run and exists now, by the first property of an absent instance.
    if ($null -eq $Absent) {
        return $false
    }
    $first = @($Absent.PSObject.Properties)[0]
    if (-not $States.before.Contains($first.Name) -or -not (Test-WinhostSame $States.before[$first.Name] $first.Value)) {
        return $false
    }
    (Test-WinhostIsReadable $States $first.Name) -and -not (Test-WinhostSame $States.now[$first.Name] $first.Value)
}

function Select-WinhostDifferingValues {
    param($State, $States)
    $differing = [ordered]@{}
    foreach ($property in @($State.PSObject.Properties)) {
        if ((Test-WinhostIsReadable $States $property.Name) -and -not (Test-WinhostSame $States.now[$property.Name] $property.Value)) {
            $differing[$property.Name] = $property.Value
        }
    }
    $differing
}

function Find-WinhostUndoByProperty {
    param($Rule, $States)
    # Restores properties that are as the run left them; keeps those that somebody else changed since.
    $found = Select-WinhostOriginals $Rule $States
    $always = Test-WinhostAlwaysRestored $Rule $States
    foreach ($name in @($found.Keys)) {
        $unavailable = Read-WinhostField $States.now[$name] 'unavailable'
        if (-not $always -and $null -ne $unavailable -and -not (Test-WinhostSame $States.now[$name] $found[$name])) {
            return New-WinhostUndecidedUndo "${name}: $(ConvertTo-WinhostFaultText $States.now[$name])"
        }
    }
    $desired = [ordered]@{}
    $changed = @()
    foreach ($name in @($found.Keys)) {
        if (Test-WinhostSame $States.now[$name] $found[$name]) {
            continue
        }
        if ($always -or (Test-WinhostSame $States.now[$name] $States.after[$name])) {
            $desired[$name] = $found[$name]
        }
        else {
            $changed += $name
        }
    }
    $reasons = @(foreach ($exception in (Read-WinhostProperty $Rule 'not_restored')) {
        if ($desired.Contains($exception.property) -and (Test-WinhostSame $desired[$exception.property] $exception.value)) {
            $desired.Remove($exception.property)
            $exception.reason
        }
    })
    if ($changed.Count -gt 0) {
        $reasons += "$($changed -join ', ') changed since by somebody else"
        if (Read-WinhostField $Rule 'whole') {
            $desired = @{}
        }
    }
    New-WinhostUndo ($reasons -join ' and ') $desired
}

function Select-WinhostOriginals {
    param($Rule, $States)
    # The original values, with replacements for values that are not restored.
    $found = [ordered]@{}
    foreach ($name in @($States.before.Keys)) {
        $found[$name] = $States.before[$name]
        $pair = Read-WinhostProperty (Read-WinhostField $Rule 'instead') $name
        if ($null -ne $pair -and (Test-WinhostSame $found[$name] $pair[0])) {
            $found[$name] = $pair[1]
        }
    }
    $found
}

function Test-WinhostAlwaysRestored {
    param($Rule, $States)
    # True if it is restored whatever it was changed to since: always, or during a change.
    if (Read-WinhostField $Rule 'unconditional') {
        return $true
    }
    $ways = Read-WinhostField $Rule 'transitional_states'
    if ($null -eq $ways) {
        return $false
    }
    foreach ($way in @($ways.PSObject.Properties)) {
        if ((Test-WinhostIsReadable $States $way.Name) -and (Test-WinhostIsAmong $States.now[$way.Name] $way.Value)) {
            return $true
        }
    }
    $false
}
