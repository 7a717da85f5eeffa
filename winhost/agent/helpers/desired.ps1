# Checks of desired properties, consents, and the time limit of a change.
$script:WinhostGuidForm = '\A[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\z'

function Assert-WinhostRequired {
    param($Desired, [string[]]$Names, [string]$Says)
    foreach ($name in $Names) {
        if ($null -eq (Read-WinhostField $Desired $name)) {
            Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' $Says
        }
    }
}

function Assert-WinhostPattern {
    param($Desired, [string]$Name, [string]$Form, [string]$Says)
    # Requires the property to be null or a text that matches the pattern.
    $text = Read-WinhostField $Desired $Name
    if ($null -ne $text -and ($text -isnot [string] -or $text -cnotmatch $Form)) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' "$Name is $Says."
    }
}

function Assert-WinhostInteger {
    param($Desired, [string]$Name, [long]$Step, [long]$Most)
    # Requires the property to be null or a positive multiple of the step.
    $number = Read-WinhostField $Desired $Name
    if ($null -eq $number) {
        return
    }
    $whole = $number -is [int] -or $number -is [long]
    if (-not $whole -or $number -le 0 -or $number -gt $Most -or $number % $Step -ne 0) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' "$Name is a whole number in steps of $Step, and at most $Most."
    }
}

function Join-WinhostDesired {
    param($State, $Desired)
    # Merges the desired properties into a state.
    foreach ($property in @($Desired.PSObject.Properties)) {
        $State[$property.Name] = $property.Value
    }
}

function Assert-WinhostDataConsent {
    param($How, [string]$What)
    if (-not (Test-WinhostConsent $How 'data')) {
        Stop-Winhost 'Winhost.HoldsData' 'ResourceBusy' "$What, without the consent for it."
    }
}

function Test-WinhostConsent {
    param($How, [string]$Risk)
    @(Read-WinhostField $How 'accept') -contains $Risk
}

function Read-WinhostTimeout {
    param($How, [int]$Otherwise)
    # Returns the seconds that a change may take.
    $within = Read-WinhostField $How 'within'
    if ($null -eq $within) {
        return $Otherwise
    }
    $within
}
