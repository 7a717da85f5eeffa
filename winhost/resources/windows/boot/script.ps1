# key {}   state {boot_id: text, logon_ready: bool, servicing: bool}; restart: restarts the host in 2 seconds
function Get-WinhostBoot {
    $servicing = 'SOFTWARE\Microsoft\Windows\CurrentVersion\Component Based Servicing\Interface'
    $state = @{
        boot_id = Read-WinhostBootId
        # A volatile key: gone with each restart, made again when the logon screen is up.
        logon_ready = Read-WinhostValue { Test-WinhostRegistry 'SOFTWARE\Microsoft\Windows NT\CurrentVersion\Winlogon\AutoLogonChecked' }
        # 0 is idle and 1 is idle with a transaction open; anything else is at work.
        servicing = Read-WinhostValue { [int](Read-WinhostRegistry $servicing 'ServicingInProgress') -gt 1 }
    }
    @{ key = @{}; state = $state }
}

function Read-WinhostBootId {
    # When the session manager began that System (process 4) started: it lives as long as Windows; those of sessions are
    # its children. The time of the start itself moves when the clock is set
    # (https://github.com/boostorg/interprocess/issues/96), and a restart that is still due would be taken for done. No
    # real Windows was asked yet whether it always tells (unverified).
    foreach ($each in @(Get-CimInstance -ClassName Win32_Process -Filter "Name = 'smss.exe'" -ErrorAction Stop)) {
        if ($each.ParentProcessId -eq 4 -and $null -ne $each.CreationDate) {
            return "$($each.CreationDate.ToFileTimeUtc())"
        }
    }
    "$((Get-CimInstance -ClassName Win32_OperatingSystem -ErrorAction Stop).LastBootUpTime.ToFileTimeUtc())"
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
