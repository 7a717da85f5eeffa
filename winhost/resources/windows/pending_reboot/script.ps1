# key {}   state {reasons: [servicing | windows-update | server-manager | file-rename | computer-rename]}
function Get-WinhostPendingReboot {
    $versions = 'SOFTWARE\Microsoft\Windows\CurrentVersion'
    $names = 'SYSTEM\CurrentControlSet\Control\ComputerName'
    $reasons = Read-WinhostList {
        if (Test-WinhostRegistry "$versions\Component Based Servicing\RebootPending") {
            'servicing'
        }
        if (Test-WinhostRegistry "$versions\WindowsUpdate\Auto Update\RebootRequired") {
            'windows-update'
        }
        if (Test-WinhostRegistry 'SOFTWARE\Microsoft\ServerManager\CurrentRebootAttempts') {
            'server-manager'
        }
        if (@(Read-WinhostRegistry 'SYSTEM\CurrentControlSet\Control\Session Manager' 'PendingFileRenameOperations').Count -gt 1) {
            'file-rename'
        }
        $active = Read-WinhostRegistry "$names\ActiveComputerName" 'ComputerName'
        $next = Read-WinhostRegistry "$names\ComputerName" 'ComputerName'
        if ("$active" -ne "$next") {
            'computer-rename'
        }
    }
    @{ key = @{}; state = @{ reasons = $reasons } }
}
