# key {}   state {iov_support: bool, iov_reasons: [text], service: text}
function Get-WinhostHyperVHost {
    Assert-WinhostHyperV
    $state = @{
        iov_support = Read-WinhostValue { [bool](Get-VMHost -ErrorAction Stop).IovSupport }
        iov_reasons = Read-WinhostList { Read-WinhostIovReasons }
        service = Read-WinhostValue { Read-WinhostService 'vmms' }
    }
    @{ key = @{}; state = $state }
}

function Read-WinhostIovReasons {
    $machine = Get-VMHost -ErrorAction Stop
    foreach ($reason in @($machine.IovSupportReasons)) {
        if ("$reason" -ne '') {
            "$reason"
        }
    }
}
