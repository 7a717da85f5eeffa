# One process is one runspace: a line of JSON in, {n, script} or {n, command, parameters}; a line of JSON out, with the
# same n, {output} or {fault}.
Set-StrictMode -Version 3.0
$ErrorActionPreference = 'Stop'
# As in the agent: otherwise Windows PowerShell 5.1 writes some arrays as {"value":[],"Count":0}.
Remove-TypeData -TypeName System.Array -ErrorAction Ignore
$utf8 = New-Object -TypeName System.Text.UTF8Encoding -ArgumentList $false
$reader = New-Object -TypeName System.IO.StreamReader -ArgumentList ([Console]::OpenStandardInput()), $utf8
$writer = New-Object -TypeName System.IO.StreamWriter -ArgumentList ([Console]::OpenStandardOutput()), $utf8
$writer.NewLine = "`n"
$writer.AutoFlush = $true
# As behind a remoting endpoint: the runspace has no host for output or prompts.
$runspace = [System.Management.Automation.Runspaces.RunspaceFactory]::CreateRunspace()
$runspace.Open()

function Invoke-Line {
    param($Asked)
    $shell = [System.Management.Automation.PowerShell]::Create()
    $shell.Runspace = $runspace
    try {
        if ($null -ne $Asked.PSObject.Properties['script']) {
            [void]$shell.AddScript($Asked.script, $false)
        }
        else {
            [void]$shell.AddCommand($Asked.command)
            foreach ($parameter in $Asked.parameters.PSObject.Properties) {
                [void]$shell.AddParameter($parameter.Name, $parameter.Value)
            }
        }
        @{ output = @(foreach ($each in $shell.Invoke()) { "$each" }) }
    }
    catch {
        # The outer exception is that of Invoke(); the inner one is the error of the command.
        $record = $_
        if ($_.Exception.InnerException -is [System.Management.Automation.RuntimeException]) {
            $record = $_.Exception.InnerException.ErrorRecord
        }
        $said = @{ message = "$($record.Exception.Message)"; code = "$($record.FullyQualifiedErrorId)" }
        $said.category = "$($record.CategoryInfo.Category)"
        @{ fault = $said }
    }
    finally {
        $shell.Dispose()
    }
}

while ($null -ne ($line = $reader.ReadLine())) {
    $asked = ConvertFrom-Json -InputObject $line
    $answer = Invoke-Line $asked
    $answer.n = $asked.n
    $writer.WriteLine((ConvertTo-Json -InputObject $answer -Depth 4 -Compress))
}
