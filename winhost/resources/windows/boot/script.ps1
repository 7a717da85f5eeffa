# key {}   state {boot_id: text, logon_ready: bool, servicing: bool}; restart: restarts the host in 2 seconds
function Get-WinhostBoot {
    $servicing = 'SOFTWARE\Microsoft\Windows\CurrentVersion\Component Based Servicing\Interface'
    $state = @{
        boot_id = Read-WinhostBootId
        # A volatile key: it is removed by a restart, and created when the logon screen is shown.
        logon_ready = Read-WinhostValue { Test-WinhostRegistry 'SOFTWARE\Microsoft\Windows NT\CurrentVersion\Winlogon\AutoLogonChecked' }
        # 0: idle; 1: idle with an open transaction; any other value: busy.
        servicing = Read-WinhostValue { [int](Read-WinhostRegistry $servicing 'ServicingInProgress') -gt 1 }
    }
    @{ key = @{}; state = $state }
}

function Read-WinhostBootId {
    # The start time of the session manager whose parent is System (process 4). It runs as long as Windows; those of
    # sessions are its children. The boot time itself changes when the clock is set
    # (https://github.com/boostorg/interprocess/issues/96), so that a pending restart would be taken for done. That every
    # Windows reports this process is unverified.
    foreach ($each in @(Get-CimInstance -ClassName Win32_Process -Filter "Name = 'smss.exe'" -ErrorAction Stop)) {
        if ($each.ParentProcessId -eq 4 -and $null -ne $each.CreationDate) {
            return "$($each.CreationDate.ToFileTimeUtc())"
        }
    }
    "$((Get-CimInstance -ClassName Win32_OperatingSystem -ErrorAction Stop).LastBootUpTime.ToFileTimeUtc())"
}

function Restart-WinhostBoot {
    # p:2:4: planned, operating system, reconfiguration. The delay of two seconds lets the answer be sent first.
    $ended = Invoke-WinhostNative 'shutdown.exe' @('/r', '/t', '2', '/d', 'p:2:4') 30
    if ($null -eq $ended) {
        Stop-Winhost 'Winhost.RestartRefused' 'ObjectNotFound' 'There is no shutdown.exe.'
    }
    # 1115: a shutdown is already in progress, which counts as success.
    if (@(0, 1115) -notcontains $ended.code) {
        Stop-Winhost 'Winhost.RestartRefused' 'InvalidResult' "shutdown.exe: $($ended.code) $($ended.errors)"
    }
    @{ restart = @(@{ system = 'host' }) }
}
