# One call of the agent in a process of its own: a line of JSON comes in, with parts of the agent and the request, and a
# line of base64 goes out for each thing that it says. Both are ASCII, because a console has another code page in every
# country; $input, because this powershell.exe reads by itself what is sent to it.
$ErrorActionPreference = 'Stop'
$ProgressPreference = 'SilentlyContinue'
$sent = ConvertFrom-Json -InputObject (@($input) -join '') -ErrorAction Stop
$answers = @(. ([ScriptBlock]::Create($sent.script)) $sent.request)
foreach ($answer in $answers) {
    [System.Console]::Out.WriteLine([System.Convert]::ToBase64String([System.Text.Encoding]::UTF8.GetBytes([string]$answer)))
}
