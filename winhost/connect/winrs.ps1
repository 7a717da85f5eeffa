# One call of the agent in a process of its own: two lines of base64 come in, the agent and its request, and a line goes
# out for each thing that it says. Base64, because a console has another code page in every country; $input, because
# this powershell.exe reads by itself what is sent to it.
$ErrorActionPreference = 'Stop'
$ProgressPreference = 'SilentlyContinue'
$sent = @(foreach ($line in $input) {
    [System.Text.Encoding]::UTF8.GetString([System.Convert]::FromBase64String($line))
})
$answers = @(. ([ScriptBlock]::Create($sent[0])) $sent[1])
foreach ($answer in $answers) {
    [System.Console]::Out.WriteLine([System.Convert]::ToBase64String([System.Text.Encoding]::UTF8.GetBytes([string]$answer)))
}
