# key {}   state {present: bool, version: text or null}
function Get-WinhostWsl {
    # The package writes its version here; wsl.exe would print it in the host's language, and not in every session.
    $package = 'SOFTWARE\Microsoft\Windows\CurrentVersion\Lxss\MSI'
    $state = @{
        present = Read-WinhostValue { Test-WinhostWsl }
        version = Read-WinhostValue { Read-WinhostRegistry $package 'Version' }
    }
    @{ key = @{}; state = $state }
}

function Test-WinhostWsl {
    # WslService belongs to the package, LxssManager to the one in the box.
    (Read-WinhostService 'WslService') -ne 'absent' -or (Read-WinhostService 'LxssManager') -ne 'absent'
}
