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
            # From where PowerShell stands, which is not where its process was started.
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
    # Straight from the agent: what has been through JSON once more may come back as dates.
    $answers = @(Invoke-WinhostBatch $calls)
    $resources = [ordered]@{}
    for ($number = 0; $number -lt $calls.Count; $number++) {
        $resources[$calls[$number].resource] = ConvertTo-WinhostFact $answers[$number]
    }
    $name = $script:Name
    if ($name -eq '') {
        $name = "$(Read-WinhostOf $resources['OperatingSystem'] 'hostname')"
    }
    [ordered]@{
        host = $name
        # A simulated host says so, and so does everything that is made from its facts.
        origin = @('recorded', 'synthetic')[[int]((Read-WinhostOf $resources['Session'] 'simulated') -eq $true)]
        read_at = [System.DateTime]::UtcNow.ToString('yyyy-MM-ddTHH:mm:ss+00:00', [cultureinfo]::InvariantCulture)
        winhost = $script:WinhostVersion
        resources = $resources
        schema = 'winhost.facts/3'
    }
}

function ConvertTo-WinhostFact {
    param($Answer)
    if ($Answer.ok) {
        # The comma keeps a list of one and a list of none a list.
        return , @($Answer.instances)
    }
    if ($Answer.ContainsKey('unavailable')) {
        return @{ unavailable = $Answer.unavailable }
    }
    @{ unknown = $Answer.error }
}

function Read-WinhostOf {
    param($Fact, [string]$Property)
    # Of a resource without a key, of which there is one; null where it could not be read.
    if ($Fact -is [array]) {
        $Fact[0].state[$Property]
    }
}
