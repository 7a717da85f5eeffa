# key {account}   state {there: bool, sid: text or null, enabled: bool, password_expires: bool, administrator: bool, ours: bool, profile: text or null, sessions: int or null, distros: int or null}
$script:WinhostAccountMarker = 'winhost: owns the Linux distro; see winhost docs'
$script:WinhostAdministrators = 'S-1-5-32-544'

function Get-WinhostLocalAccount {
    param($Key)
    Assert-WinhostAdministrator
    foreach ($user in @(Find-WinhostAccounts)) {
        $sid = "$($user.SID)"
        $ours = Test-WinhostOwnAccount $user
        $state = @{
            there = $true
            sid = $sid
            enabled = [bool]$user.Enabled
            password_expires = $null -ne $user.PasswordExpires
            administrator = Read-WinhostValue { @(Read-WinhostCached 'administrators' { Read-WinhostGroup $script:WinhostAdministrators }) -contains $sid }
            ours = $ours
            profile = Read-WinhostValue { Read-WinhostProfile $sid }
            sessions = Read-WinhostValue { Measure-WinhostSessions $user.Name }
            distros = $null
        }
        if ($ours) {
            Assert-WinhostPart 'Measure-WinhostDistros'
            $state.distros = Read-WinhostValue { Measure-WinhostDistros $user }
        }
        @{ key = @{ account = "$($user.Name)" }; state = $state }
    }
    if ($null -ne $Key) {
        Assert-WinhostPart 'New-WinhostAbsentAccount'
        @{ key = @{ account = "$(Read-WinhostField $Key 'account')" }; state = New-WinhostAbsentAccount }
    }
}

function New-WinhostAbsentAccount {
    $state = @{
        there = $false
        sid = $null
        enabled = $false
        password_expires = $false
        administrator = $false
        ours = $false
        profile = $null
        sessions = $null
        distros = $null
    }
    $state
}

# ---- accounts

function Test-WinhostDomainController {
    (Read-WinhostRegistry 'SYSTEM\CurrentControlSet\Control\ProductOptions' 'ProductType') -eq 'LanmanNT'
}

function Find-WinhostAccounts {
    # On a domain controller the cmdlets would return, and change, domain accounts.
    if (Test-WinhostDomainController) {
        Stop-Winhost 'Winhost.NoLocalAccounts' 'InvalidOperation' 'A domain controller has no accounts of its own.'
    }
    Read-WinhostCached 'accounts' { Get-LocalUser -ErrorAction Stop }
}

function Find-WinhostAccount {
    param([string]$Account)
    foreach ($user in @(Find-WinhostAccounts)) {
        if (Test-WinhostText $user.Name $Account 'OrdinalIgnoreCase') {
            return $user
        }
    }
}

function Read-WinhostSid {
    param([string]$Account)
    $user = Find-WinhostAccount $Account
    if ($null -eq $user) {
        Stop-Winhost 'Winhost.NotFound' 'ObjectNotFound' "There is no account $Account."
    }
    "$($user.SID)"
}

function Test-WinhostOwnAccount {
    param($User)
    Test-WinhostText "$($User.Description)" $script:WinhostAccountMarker 'Ordinal'
}

function Assert-WinhostOwnAccount {
    param($User)
    if (-not (Test-WinhostOwnAccount $User)) {
        Stop-Winhost 'Winhost.NotOurs' 'InvalidOperation' "winhost did not make the account $($User.Name)."
    }
}

function Assert-WinhostAccountName {
    param([string]$Account)
    # The name becomes part of paths and of task names. Windows allows 20 characters.
    if ($Account -cnotmatch '^[A-Za-z0-9]([A-Za-z0-9._-]{0,18}[A-Za-z0-9_-])?\z') {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'An account of winhost has a name of letters, digits, dots and dashes, 20 at most.'
    }
}

function Read-WinhostProfile {
    param([string]$Sid)
    # The profile folder is created at the first logon, and is not always named after the account.
    Read-WinhostRegistry "SOFTWARE\Microsoft\Windows NT\CurrentVersion\ProfileList\$Sid" 'ProfileImagePath'
}

function Read-WinhostGroup {
    param([string]$Sid)
    # Returns the SIDs of the members. Get-LocalGroupMember fails if one member was deleted or is of a cloud directory.
    $identifier = New-Object -TypeName System.Security.Principal.SecurityIdentifier -ArgumentList $Sid
    $name = $identifier.Translate([System.Security.Principal.NTAccount]).Value.Split('\')[-1]
    $group = New-Object -TypeName System.DirectoryServices.DirectoryEntry -ArgumentList "WinNT://./$name,group"
    foreach ($member in @($group.Invoke('Members'))) {
        $bytes = [System.__ComObject].InvokeMember('objectSid', 'GetProperty', $null, $member, $null)
        $identifier = New-Object -TypeName System.Security.Principal.SecurityIdentifier -ArgumentList @($bytes, 0)
        $identifier.Value
    }
}

function Measure-WinhostSessions {
    param([string]$Account)
    # Counts interactive sessions (console, remote, unlocked, cached credentials), not those of tasks and services.
    $people = @{}
    foreach ($session in @(Read-WinhostCached 'logon-sessions' { Get-CimInstance -ClassName Win32_LogonSession -ErrorAction Stop })) {
        if (@(2, 7, 10, 11, 12, 13) -contains $session.LogonType) {
            $people["$($session.LogonId)"] = $true
        }
    }
    $count = 0
    $name = Read-WinhostRegistry 'SYSTEM\CurrentControlSet\Control\ComputerName\ActiveComputerName' 'ComputerName'
    foreach ($logon in @(Read-WinhostCached 'logons' { Get-CimInstance -ClassName Win32_LoggedOnUser -ErrorAction Stop })) {
        # A domain may have an account of the same name.
        $isLocal = $logon.Antecedent.Domain -eq $name
        if ($isLocal -and $logon.Antecedent.Name -eq $Account -and $people.ContainsKey("$($logon.Dependent.LogonId)")) {
            $count++
        }
    }
    $count
}

function Measure-WinhostDistros {
    param($User)
    $count = Measure-WinhostFiles "$(Read-WinhostDataFolder)\distros\$($User.Name)" 'ext4.vhdx'
    $folder = Read-WinhostProfile "$($User.SID)"
    if ($null -ne $folder) {
        $count += Measure-WinhostFiles $folder 'ext4.vhdx'
    }
    $count
}

function Measure-WinhostFiles {
    param([string]$Folder, [string]$Name)
    # Links are not followed: a profile contains links to its own folders.
    $count = 0
    $waiting = New-Object -TypeName System.Collections.Stack
    if (Test-WinhostLink $Folder) {
        Stop-Winhost 'Winhost.NotAFolder' 'InvalidType' "$Folder is a link."
    }
    if (Test-WinhostFolder $Folder) {
        $waiting.Push($Folder)
    }
    while ($waiting.Count -gt 0) {
        $path = $waiting.Pop()
        $here = New-Object -TypeName System.IO.DirectoryInfo -ArgumentList $path
        foreach ($each in $here.GetFileSystemInfos()) {
            if ($each.Attributes -band [System.IO.FileAttributes]::ReparsePoint) {
                continue
            }
            if ($each.Attributes -band [System.IO.FileAttributes]::Directory) {
                $waiting.Push($each.FullName)
            }
            elseif ($each.Name -eq $Name) {
                $count++
            }
        }
    }
    $count
}

# ---- making and removing

function Set-WinhostLocalAccount {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('there', 'administrator')
    Assert-WinhostAccountName $Key.account
    Assert-WinhostBoolean $Desired @('there', 'administrator')
    $user = Find-WinhostAccount $Key.account
    if ((Test-WinhostDesired $Desired 'there') -and -not $Desired.there) {
        if ($null -ne $user) {
            Remove-WinhostAccount $user $How
        }
        return
    }
    if ($null -eq $user) {
        if (-not (Test-WinhostDesired $Desired 'there')) {
            Stop-Winhost 'Winhost.NotFound' 'ObjectNotFound' "There is no account $($Key.account)."
        }
        # This password is not stored: registering the account's tasks sets another one.
        $secret = New-WinhostSecret
        $user = New-LocalUser -Name $Key.account -Password $secret -Description $script:WinhostAccountMarker -PasswordNeverExpires -AccountNeverExpires -UserMayNotChangePassword -Confirm:$false -ErrorAction Stop
    }
    if (Test-WinhostDesired $Desired 'administrator') {
        Switch-WinhostAdministrator $user $Desired.administrator
    }
}

function New-WinhostSecret {
    # 288 random bits in 48 characters, and one character of each kind that a password policy may require.
    $letters = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_'
    $bytes = [byte[]]::new(48)
    $random = [System.Security.Cryptography.RandomNumberGenerator]::Create()
    $random.GetBytes($bytes)
    $random.Dispose()
    $secret = New-Object -TypeName System.Security.SecureString
    foreach ($byte in $bytes) {
        $secret.AppendChar($letters[$byte % 64])
    }
    foreach ($letter in 'Aa1-'.ToCharArray()) {
        $secret.AppendChar($letter)
    }
    $secret
}

function Switch-WinhostAdministrator {
    param($User, [bool]$Desired)
    if (@(Read-WinhostGroup $script:WinhostAdministrators) -contains "$($User.SID)" -eq $Desired) {
        return
    }
    Assert-WinhostOwnAccount $User
    if ($Desired) {
        Add-LocalGroupMember -SID $script:WinhostAdministrators -Member $User -Confirm:$false -ErrorAction Stop
    }
    else {
        Remove-LocalGroupMember -SID $script:WinhostAdministrators -Member $User -Confirm:$false -ErrorAction Stop
    }
}

function Remove-WinhostAccount {
    param($User, $How)
    Assert-WinhostOwnAccount $User
    $distros = Measure-WinhostDistros $User
    if ($distros -gt 0) {
        Stop-Winhost 'Winhost.HoldsDistro' 'ResourceExists' "The profile of $($User.Name) holds $distros distro(s)."
    }
    Remove-WinhostProfile $User $How
    Remove-LocalUser -InputObject $User -Confirm:$false -ErrorAction Stop
}

function Remove-WinhostProfile {
    param($User, $How)
    $end = (Read-WinhostClock) + (Read-WinhostTimeout $How 60)
    do {
        $found = $null
        foreach ($each in @(Get-CimInstance -ClassName Win32_UserProfile -ErrorAction Stop)) {
            if ("$($each.SID)" -eq "$($User.SID)") {
                $found = $each
            }
        }
        if ($null -eq $found) {
            return
        }
        if (-not $found.Loaded) {
            Remove-CimInstance -InputObject $found -Confirm:$false -ErrorAction Stop
            return
        }
        # A profile is unloaded some seconds after the last logon has ended.
        Start-Sleep -Seconds 1 -ErrorAction Stop
    } while ((Read-WinhostClock) -lt $end)
    Stop-Winhost 'Winhost.LoggedOn' 'ResourceBusy' "$($User.Name) is still logged on."
}
