# rules of resources, as the table of resources declares them: what a change needs and asks for, and how it is undone

# The engine reads the same declarations: winhost/core has this in Python.

function Test-WinhostConditions {
    param($Conditions, $States)
    # All of them. States: tables of properties, by the names that a condition has for them.
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
            if (Test-WinhostFits $Condition $any $States) {
                return $true
            }
        }
        return $false
    }
    if ($of -ceq 'now' -and -not (Test-WinhostRead $States $name)) {
        return $false
    }
    $States[$of].Contains($name) -and (Test-WinhostFits $Condition $States[$of][$name] $States)
}

function Find-WinhostStateOf {
    param($Condition)
    $of = Read-WinhostField $Condition 'of'
    if ($null -eq $of) {
        return 'now'
    }
    $of
}

function Test-WinhostRead {
    param($States, [string]$Name)
    # What could not be read decides nothing; the first such property is remembered, and nothing is done.
    $found = $States.now[$Name]
    if ($null -eq (Read-WinhostField $found 'unknown')) {
        return $true
    }
    if ($States.lacks -ceq '') {
        $States.lacks = "$($States.title) (${Name}): $(ConvertTo-WinhostWhy $found)"
    }
    $false
}

function Test-WinhostFits {
    param($Condition, $Given, $States)
    $wanted = Read-WinhostProperty $Condition 'one_of'
    if ($null -ne $wanted -and -not (Test-WinhostAmong $Given $wanted)) {
        return $false
    }
    if (Test-WinhostAmong $Given (Read-WinhostProperty $Condition 'none_of')) {
        return $false
    }
    $start = "$(Read-WinhostField $Condition 'starts_with')"
    if ($start -cne '' -and -not (Test-WinhostBegins $Given $start)) {
        return $false
    }
    if ((Read-WinhostField $Condition 'unavailable') -and $null -eq (Read-WinhostField $Given 'unavailable')) {
        return $false
    }
    foreach ($other in (Read-WinhostProperty $Condition 'differs_from')) {
        if (Test-WinhostSame $Given $States[$other][$Condition.property]) {
            return $false
        }
    }
    -not (Read-WinhostField $Condition 'gained') -or (Find-WinhostGain $Given $States.after[$Condition.property]) -cne ''
}

function Test-WinhostBegins {
    param($Given, [string]$Start)
    $Given -is [string] -and $Given.StartsWith($Start, [System.StringComparison]::Ordinal)
}

function Find-WinhostGain {
    param($Given, $Left)
    # How much larger a number is than the run left it, or what a list has beside that; in words.
    if ($Given -is [array]) {
        $new = @(foreach ($each in $Given) { if (-not (Test-WinhostAmong $each $Left)) { $each } })
        $new = @(Select-WinhostFirst $new)
        [array]::Sort($new, [System.StringComparer]::Ordinal)
        return $new -join ', '
    }
    if ($Given -is [ValueType] -and $Given -isnot [bool] -and $Given -gt $Left) {
        return "$($Given - $Left)"
    }
    ''
}

function Select-WinhostFirst {
    param($Names)
    $seen = @()
    foreach ($name in $Names) {
        if ($seen -cnotcontains $name) {
            $seen += $name
            $name
        }
    }
}

# ---- what a change needs and asks for

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
            if (Test-WinhostBegins $text $rule.starts_with) {
                $text.Substring($rule.starts_with.Length)
            }
        }
    })
    $found = @(Select-WinhostFirst $found)
    [array]::Sort($found, [System.StringComparer]::Ordinal)
    $found
}

function Find-WinhostConsents {
    param($Goal, $Change)
    $key = @{}
    Copy-WinhostState $Goal.key $key
    $states = @{ before = $Change.before; desired = $Change.desired; key = $key }
    $asked = @(foreach ($rule in (ConvertFrom-Json -InputObject (Find-WinhostResource $Goal.resource).risks -ErrorAction Stop)) {
        $unless = Read-WinhostProperty $rule 'unless'
        $spared = $null -ne $unless -and (Test-WinhostConditions $unless $states)
        if (-not $spared -and (Test-WinhostConditions (Read-WinhostProperty $rule 'when') $states)) {
            $rule.consent
        }
    })
    Select-WinhostFirst $asked
}

# ---- undoing

function Find-WinhostUndo {
    param($Touched, $Now)
    # desired: what is to be put back, perhaps nothing; keep: why it, or a part of it, is left as it is; lacks: what
    # cannot be known, so that it is neither.
    $rule = ConvertFrom-Json -InputObject (Find-WinhostResource $Touched.resource).undo -ErrorAction Stop
    $states = New-WinhostStates $Touched $Now
    foreach ($name in $Touched.changed) {
        $null = Test-WinhostRead $states $name
    }
    $undo = Find-WinhostUndoBy $rule $states
    if ($states.lacks -cne '') {
        return New-WinhostLacks $states.lacks
    }
    $undo
}

function New-WinhostStates {
    param($Touched, $Now)
    # before: what the run changed, as it was found; after: as the run left it, or saw it on its way.
    $states = @{ before = [ordered]@{}; after = @{}; now = [ordered]@{}; lacks = ''; title = ConvertTo-WinhostTitle $Touched.resource }
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
    @{ keep = $Keep; desired = $Desired; lacks = '' }
}

function New-WinhostLacks {
    param([string]$Why)
    # What could not be read is neither kept nor put back.
    @{ keep = ''; desired = @{}; lacks = $Why }
}

function Find-WinhostUndoBy {
    param($Rule, $States)
    foreach ($conditions in (Read-WinhostProperty $Rule 'gone_if')) {
        if (Test-WinhostConditions $conditions $States) {
            return New-WinhostUndo '' @{}
        }
    }
    foreach ($unknown in (Read-WinhostProperty $Rule 'unknown_if')) {
        if (Test-WinhostConditions $unknown.when $States) {
            return New-WinhostLacks "$($unknown.fact) cannot be told before $($unknown.until) is there"
        }
    }
    foreach ($keeps in (Read-WinhostProperty $Rule 'keep_if')) {
        if (Test-WinhostConditions $keeps.when $States) {
            return New-WinhostUndo (ConvertTo-WinhostReason $keeps $States) @{}
        }
    }
    $absent = Read-WinhostField $Rule 'remove_if_created'
    $created = Test-WinhostCreated $absent $States
    if ($created -and -not (Read-WinhostField $Rule 'unless_changed')) {
        return New-WinhostUndo '' (Select-WinhostDiffering $absent $States)
    }
    $never = "$(Read-WinhostField $Rule 'never')"
    if ($never -cne '') {
        return New-WinhostUndo $never @{}
    }
    $undo = Find-WinhostUndoByProperty $Rule $States
    if ($created -and $undo.keep -ceq '' -and $undo.lacks -ceq '') {
        return New-WinhostUndo '' (Select-WinhostDiffering $absent $States)
    }
    $undo
}

function ConvertTo-WinhostReason {
    param($Keeps, $States)
    # With what its conditions found in place of their properties in braces.
    $found = @{}
    foreach ($each in $Keeps.when) {
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
    [regex]::Replace($Keeps.reason, '\{([a-z_]+)\}', { param($Part) $found[$Part.Groups[1].Value] })
}

function Test-WinhostCreated {
    param($Absent, $States)
    # By the first property of what is not there: the run made it, and it is there still.
    if ($null -eq $Absent) {
        return $false
    }
    $first = @($Absent.PSObject.Properties)[0]
    if (-not $States.before.Contains($first.Name) -or -not (Test-WinhostSame $States.before[$first.Name] $first.Value)) {
        return $false
    }
    (Test-WinhostRead $States $first.Name) -and -not (Test-WinhostSame $States.now[$first.Name] $first.Value)
}

function Select-WinhostDiffering {
    param($State, $States)
    $differing = [ordered]@{}
    foreach ($property in @($State.PSObject.Properties)) {
        if ((Test-WinhostRead $States $property.Name) -and -not (Test-WinhostSame $States.now[$property.Name] $property.Value)) {
            $differing[$property.Name] = $property.Value
        }
    }
    $differing
}

function Find-WinhostUndoByProperty {
    param($Rule, $States)
    # Put back what still stands as the run left it; what somebody changed since is theirs.
    $found = Select-WinhostFound $Rule $States
    $ours = Test-WinhostOurs $Rule $States
    foreach ($name in @($found.Keys)) {
        $there = Read-WinhostField $States.now[$name] 'unavailable'
        if (-not $ours -and $null -ne $there -and -not (Test-WinhostSame $States.now[$name] $found[$name])) {
            return New-WinhostLacks "${name}: $(ConvertTo-WinhostWhy $States.now[$name])"
        }
    }
    $desired = [ordered]@{}
    $foreign = @()
    foreach ($name in @($found.Keys)) {
        if (Test-WinhostSame $States.now[$name] $found[$name]) {
            continue
        }
        if ($ours -or (Test-WinhostSame $States.now[$name] $States.after[$name])) {
            $desired[$name] = $found[$name]
        }
        else {
            $foreign += $name
        }
    }
    $reasons = @(foreach ($lost in (Read-WinhostProperty $Rule 'not_restored')) {
        if ($desired.Contains($lost.property) -and (Test-WinhostSame $desired[$lost.property] $lost.value)) {
            $desired.Remove($lost.property)
            $lost.reason
        }
    })
    if ($foreign.Count -gt 0) {
        $reasons += "$($foreign -join ', ') changed since by somebody else"
        if (Read-WinhostField $Rule 'whole') {
            $desired = @{}
        }
    }
    New-WinhostUndo ($reasons -join ' and ') $desired
}

function Select-WinhostFound {
    param($Rule, $States)
    # As it was found, but for values that never come back.
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

function Test-WinhostOurs {
    param($Rule, $States)
    # Whatever it was changed to since: always, or while it is on its way.
    if (Read-WinhostField $Rule 'unconditional') {
        return $true
    }
    $ways = Read-WinhostField $Rule 'transitional_states'
    if ($null -eq $ways) {
        return $false
    }
    foreach ($way in @($ways.PSObject.Properties)) {
        if ((Test-WinhostRead $States $way.Name) -and (Test-WinhostAmong $States.now[$way.Name] $way.Value)) {
            return $true
        }
    }
    $false
}
