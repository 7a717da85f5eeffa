# Verify.ps1: check all goals of the plan

function Start-WinhostVerify {
    try {
        Assert-WinhostUsage
        $bundle = Open-WinhostPlan 'Verify.ps1'
        Assert-WinhostHost $bundle.plan $false
        $facts = Read-WinhostHost
        Show-WinhostWslAccounts $facts
        $checks = @(Test-WinhostGoals $bundle.stage.desired $facts)
        $result = New-WinhostVerdict $bundle $checks
    }
    catch {
        $result = ConvertTo-WinhostFailure $_
    }
    Show-WinhostResult $result
}

function New-WinhostVerdict {
    param($Bundle, $Checks)
    $code = 4 * [int](Test-WinhostAnyFailed $Checks)
    $lines = @(ConvertTo-WinhostCheckLines $Checks $true)
    $lines += "$($Bundle.plan.host): $(@('as planned', 'not as planned')[[int]($code -ne 0)])."
    if ([System.IO.Directory]::Exists((Join-WinhostPath $PSScriptRoot 'linux'))) {
        $lines += '  Of its Linux says there, as root: python3 -I linux/run.py verify'
    }
    if (@($Bundle.stage.deferred).Count -gt 0) {
        $lines += '  This says nothing of later stages, which this plan could not know.'
    }
    $document = [ordered]@{ host = $Bundle.plan.host; holds = $code -eq 0; checks = @($Checks) }
    @{ exit_code = $code; document = $document; lines = $lines }
}
