# Facts.ps1: what this host is

function Start-WinhostFacts {
    try {
        Assert-WinhostUsage
        Assert-WinhostSums $PSScriptRoot @('Facts.ps1', 'Winhost.ps1')
        $text = ConvertTo-WinhostText (Read-WinhostFacts)
        if ($script:OutFile -eq '') {
            $text
        }
        else {
            # Relative to PowerShell's folder, which is not that of its process.
            $path = $ExecutionContext.SessionState.Path.GetUnresolvedProviderPathFromPSPath($script:OutFile)
            [System.IO.File]::WriteAllText($path, "$text`n")
        }
    }
    catch {
        $failure = ConvertTo-WinhostFailure $_
        $script:WinhostCode = $failure.exit_code
        foreach ($line in $failure.lines) {
            [System.Console]::Error.WriteLine((ConvertTo-WinhostVisible $line))
        }
    }
}

function Read-WinhostFacts {
    $calls = @(foreach ($resource in $script:WinhostResources) { [pscustomobject]@{ resource = $resource.name; verb = 'get' } })
    # Without a detour through JSON, which could turn texts into dates.
    $answers = @(Invoke-WinhostBatch $calls)
    $resources = [ordered]@{}
    for ($number = 0; $number -lt $calls.Count; $number++) {
        $resources[$calls[$number].resource] = ConvertTo-WinhostFact $answers[$number]
    }
    $name = $script:Name
    if ($name -eq '') {
        $name = "$(Read-WinhostSingleProperty $resources['OperatingSystem'] 'hostname')"
    }
    [ordered]@{
        host = $name
        # Facts of a simulated host are marked as such.
        origin = @('recorded', 'synthetic')[[int]((Read-WinhostSingleProperty $resources['Session'] 'simulated') -eq $true)]
        read_at = [System.DateTime]::UtcNow.ToString('yyyy-MM-ddTHH:mm:ss+00:00', [cultureinfo]::InvariantCulture)
        winhost = $script:WinhostVersion
        resources = $resources
        schema = 'winhost.facts/3'
    }
}

function ConvertTo-WinhostFact {
    param($Answer)
    if ($Answer.ok) {
        # The comma keeps lists of one or no element as lists.
        return , @($Answer.instances)
    }
    if ($Answer.ContainsKey('unavailable')) {
        return @{ unavailable = $Answer.unavailable }
    }
    @{ unknown = $Answer.error }
}

function Read-WinhostSingleProperty {
    param($Fact, [string]$Property)
    # A property of a resource with one instance; null if it could not be read.
    if ($Fact -is [array]) {
        $Fact[0].state[$Property]
    }
}
