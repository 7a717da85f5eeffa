# key {}   state {boot_id: text, logon_ready: bool, servicing: bool}; restart: restarts the host in 2 seconds
function Get-WinhostBoot {
    $system = Get-CimInstance -ClassName Win32_OperatingSystem -ErrorAction Stop
    $winlogon = 'SOFTWARE\Microsoft\Windows NT\CurrentVersion\Winlogon'
    $servicing = 'SOFTWARE\Microsoft\Windows\CurrentVersion\Component Based Servicing\Interface'
    $state = @{
        boot_id = "$($system.LastBootUpTime.ToFileTimeUtc())"
        # A volatile key: gone with each restart, made again when the logon screen is up.
        logon_ready = Read-WinhostValue { Test-WinhostRegistry "$winlogon\AutoLogonChecked" }
        # 0 is idle and 1 is idle with a transaction open; anything else is at work.
        servicing = Read-WinhostValue { [int](Read-WinhostRegistry $servicing 'ServicingInProgress') -gt 1 }
    }
    @{ key = @{}; state = $state }
}

function Restart-WinhostBoot {
    # Planned, operating system, reconfiguration. Two seconds, so that this answer still leaves.
    $ended = Invoke-WinhostNative 'shutdown.exe' @('/r', '/t', '2', '/d', 'p:2:4') 30
    if ($null -eq $ended) {
        Stop-Winhost 'Winhost.RestartRefused' 'ObjectNotFound' 'There is no shutdown.exe.'
    }
    # 1115: a shutdown is already in progress, which is what was asked for.
    if (@(0, 1115) -notcontains $ended.code) {
        Stop-Winhost 'Winhost.RestartRefused' 'InvalidResult' "shutdown.exe: $($ended.code) $($ended.errors)"
    }
    @{ restart = @(@{ system = 'host' }) }
}
