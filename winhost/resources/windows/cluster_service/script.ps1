# key {}   state {state: absent | stopped | running}
function Get-WinhostClusterService {
    @{ key = @{}; state = @{ state = Read-WinhostService 'ClusSvc' } }
}
