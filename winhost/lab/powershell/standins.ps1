# What each stand-in cmdlet does: it calls the lab's simulated host over loopback, and returns its objects.
# Types and cmdlets around this text are generated; all of it is Windows PowerShell 5.1.

Remove-TypeData -TypeName System.Array -ErrorAction Ignore

function Connect-Lab {
    # The first line is a token that only the lab's own processes have: other users of this computer can reach the port.
    $port, $word = [System.Environment]::GetEnvironmentVariable('WINHOST_LAB') -split ' '
    $client = New-Object -TypeName System.Net.Sockets.TcpClient -ArgumentList '127.0.0.1', ([int]$port)
    $client.NoDelay = $true
    $utf8 = New-Object -TypeName System.Text.UTF8Encoding -ArgumentList $false
    $script:LabReader = New-Object -TypeName System.IO.StreamReader -ArgumentList $client.GetStream(), $utf8
    $script:LabWriter = New-Object -TypeName System.IO.StreamWriter -ArgumentList $client.GetStream(), $utf8
    $script:LabWriter.NewLine = "`n"
    $script:LabWriter.AutoFlush = $true
    $script:LabWriter.WriteLine($word)
}

function Invoke-Lab {
    param([string]$Name, $Given)
    $script:LabWriter.WriteLine((Microsoft.PowerShell.Utility\ConvertTo-Json -InputObject @{ name = $Name; given = $Given } -Depth 5 -Compress))
    $line = $script:LabReader.ReadLine()
    if ($null -eq $line) {
        throw 'The simulated host is gone.'
    }
    ConvertFrom-Json -InputObject $line
}

function Read-Lab {
    param([string]$Name, $Given)
    foreach ($value in (Invoke-Lab $Name $Given).objects) {
        ConvertFrom-LabValue $value
    }
}

function Read-LabOrThrow {
    param([string]$Name, [hashtable]$Given)
    $answer = Invoke-Lab $Name $Given
    if ($null -ne $answer.fault) {
        throw (New-LabError $answer.fault)
    }
    foreach ($value in $answer.objects) {
        ConvertFrom-LabValue $value
    }
}

# ---- values: JSON there, objects of the right types here

function ConvertFrom-LabValue {
    param($Value)
    # Each text has a prefix, because PowerShell 7 converts texts that look like dates.
    if ($Value -is [string]) {
        return $Value.Substring(1)
    }
    if ($Value -is [array]) {
        return , @(foreach ($each in $Value) { ConvertFrom-LabValue $each })
    }
    if ($Value -isnot [System.Management.Automation.PSCustomObject]) {
        return $Value
    }
    if ($null -ne $Value.PSObject.Properties['filetime']) {
        return [datetime]::FromFileTime($Value.filetime)
    }
    if ($null -eq $Value.type) {
        return ConvertFrom-LabTable $Value.with
    }
    $object = $script:LabTypes[$Value.type]::new()
    foreach ($property in $Value.with.PSObject.Properties) {
        $object.($property.Name) = ConvertFrom-LabValue $property.Value
    }
    $object
}

function ConvertFrom-LabTable {
    param($Values)
    $table = @{}
    foreach ($property in $Values.PSObject.Properties) {
        $table[$property.Name] = ConvertFrom-LabValue $property.Value
    }
    $table
}

function ConvertTo-LabValue {
    param($Value)
    if ($Value -is [array]) {
        return , @(foreach ($each in $Value) { ConvertTo-LabValue $each })
    }
    if ($Value -is [switch] -or $Value -is [bool]) {
        return [bool]$Value
    }
    if ($Value -is [System.Security.SecureString]) {
        return [System.Management.Automation.PSCredential]::new('x', $Value).GetNetworkCredential().Password
    }
    foreach ($type in $script:LabKeys.Keys) {
        if ($Value -is $script:LabTypes[$type]) {
            $key = @{}
            foreach ($name in $script:LabKeys[$type]) {
                $key[$name] = "$($Value.$name)"
            }
            return $key
        }
    }
    if ($Value -is [enum] -or $Value -isnot [ValueType]) {
        return "$Value"
    }
    if ($Value -is [guid]) {
        return "$Value"
    }
    $Value
}

# ---- errors

function New-LabError {
    param($Fault)
    $message = ConvertFrom-LabValue $Fault.message
    $code = ConvertFrom-LabValue $Fault.code
    $exception = $null
    $hresults = @($Fault.hresults)
    for ($index = $hresults.Count - 1; $index -ge 0; $index--) {
        $exception = [System.Exception]::new($message, $exception)
        # In Windows PowerShell, the setter is not public.
        $number = [System.Convert]::ToInt32((ConvertFrom-LabValue $hresults[$index]), 16)
        [void][System.Exception].GetProperty('HResult').GetSetMethod($true).Invoke($exception, @($number))
    }
    if ($code -like '*,Microsoft.HyperV.*') {
        $identifier = @($code.Split(','))[0]
        Add-Member -InputObject $exception -NotePropertyName ErrorIdentifier -NotePropertyValue $identifier
    }
    $record = [System.Management.Automation.ErrorRecord]::new($exception, $code, (ConvertFrom-LabValue $Fault.category), $null)
    $record.CategoryInfo.Activity = ConvertFrom-LabValue $Fault.cmdlet
    $record
}

# ---- what fails in Windows PowerShell 5.1 only

function Find-LabNothing {
    param($Parts, [string]$Path)
    # Finds the empty output of commands in a table or an object: it equals $null, but @() of it is empty. As an
    # argument it would become $null, so each value is checked where it is.
    if ($Parts -is [System.Management.Automation.PSCustomObject]) {
        $Parts = @($Parts.PSObject.Properties)
    }
    elseif ($Parts -is [System.Collections.IDictionary]) {
        $Parts = @($Parts.GetEnumerator())
    }
    elseif ($Parts -isnot [array]) {
        return
    }
    foreach ($part in $Parts) {
        $name = ''
        $value = $part
        if ($part -is [System.Collections.DictionaryEntry] -or $part -is [System.Management.Automation.PSPropertyInfo]) {
            $name = $part.Name
            $value = $part.Value
        }
        if ($null -ne $value) {
            Find-LabNothing $value "$Path.$name"
        }
        elseif (@($value).Count -eq 0) {
            "$Path.$name"
        }
    }
}

function ConvertTo-Json {
    [CmdletBinding()]
    param($InputObject, [int]$Depth = 2, [switch]$Compress)
    foreach ($path in @(Find-LabNothing $InputObject '')) {
        throw "${path}: Windows PowerShell 5.1 writes {} for it, and not null: a command returned nothing."
    }
    Microsoft.PowerShell.Utility\ConvertTo-Json -InputObject $InputObject -Depth $Depth -Compress:$Compress
}

# ---- what every stand-in cmdlet does

function Invoke-LabCmdlet {
    param([string]$Name, $Caller, $Bound, [string[]]$Parameters)
    if ("$ErrorActionPreference" -eq 'Ignore') {
        # -ErrorAction Ignore sets this; in Windows PowerShell 5.1 the cmdlets that are called below would fail.
        $ErrorActionPreference = 'SilentlyContinue'
    }
    $given = @{}
    foreach ($parameter in $Parameters) {
        if ($Bound.ContainsKey($parameter)) {
            $given[$parameter] = ConvertTo-LabValue $Bound[$parameter]
        }
    }
    $answer = Invoke-Lab $Name $given
    if ($null -ne $answer.fault) {
        $record = New-LabError $answer.fault
        if (-not $answer.fault.terminating -and "$ErrorActionPreference" -ne 'Stop') {
            $Caller.WriteError($record)
            return
        }
        # Thrown here: an error that the caller throws has the name of this function in its code.
        $ErrorActionPreference = 'Stop'
        throw $record
    }
    foreach ($value in $answer.objects) {
        ConvertFrom-LabValue $value
    }
}

Connect-Lab
