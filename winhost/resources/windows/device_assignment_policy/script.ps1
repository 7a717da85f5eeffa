# key {}   state {require_secure: int or null, require_supported: int or null}
function Get-WinhostDeviceAssignmentPolicy {
    $policy = 'SOFTWARE\Policies\Microsoft\Windows\HyperV'
    $state = @{
        require_secure = Read-WinhostValue { Read-WinhostRegistry $policy 'RequireSecureDeviceAssignment' }
        require_supported = Read-WinhostValue { Read-WinhostRegistry $policy 'RequireSupportedDeviceAssignment' }
    }
    @{ key = @{}; state = $state }
}
