# key {}   state {iov_support: bool, iov_reasons: [text], service: text}
function Get-WinhostHyperVHost {
    Assert-WinhostHyperV
    $state = @{
        iov_support = Read-WinhostValue { [bool](Get-VMHost -ErrorAction Stop).IovSupport }
        iov_reasons = Read-WinhostList {
            foreach ($reason in @((Get-VMHost -ErrorAction Stop).IovSupportReasons)) {
                if ("$reason" -ne '') {
                    "$reason"
                }
            }
        }
        service = Read-WinhostValue { Read-WinhostService 'vmms' }
    }
    @{ key = @{}; state = $state }
}
