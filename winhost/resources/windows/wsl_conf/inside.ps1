# The script that runs inside a distro, which is the same for every distro, and its output.

function Find-WinhostDistros {
    param($Key)
    # Returns the distros that winhost created, each with its record.
    foreach ($account in @(Find-WinhostWslAccounts $Key)) {
        $running = @(Read-WinhostRunningDistros $account)
        foreach ($distro in @(Read-WinhostDistroNames $account)) {
            $desired = Read-WinhostField $Key 'distro'
            $record = Read-WinhostOwnDistroRecord $account $distro
            if ($null -ne $record -and ($null -eq $desired -or (Test-WinhostText $distro $desired 'OrdinalIgnoreCase'))) {
                @{ key = @{ account = $account; distro = $distro }; record = $record; running = $running -contains $distro }
            }
        }
    }
}

function Assert-WinhostDistroInstalled {
    param($Key)
    if (-not (Test-WinhostDistro $Key)) {
        Stop-Winhost 'Winhost.Unavailable' 'ObjectNotFound' "$($Key.account) has no distro $($Key.distro)." 'WslDistro'
    }
    Assert-WinhostOwnDistro $Key
}

function Join-WinhostDistroRecord {
    param($Record, $Conf, $Access)
    @{ image = $Record.image; complete = $true; conf = $Conf; access = $Access }
}

function Select-WinhostValues {
    param([string[]]$Lines, [string]$Name)
    foreach ($line in $Lines) {
        if ($line.StartsWith("$Name ", [System.StringComparison]::Ordinal)) {
            $line.Substring($Name.Length + 1)
        }
    }
}

function Read-WinhostDistroState {
    param($Key)
    Read-WinhostCached "inside $($Key.distro) of $($Key.account)" {
        $seen = @(Split-WinhostLines (Invoke-WinhostDistroScript $Key 'look' @() 120).output)
        if ($seen.Count -eq 0 -or $seen[-1] -cne 'end .') {
            Stop-Winhost 'Winhost.InDistroFailed' 'InvalidResult' 'The answer of the distro is incomplete.'
        }
        $seen
    }
}

function Invoke-WinhostDistroScript {
    param($Key, [string]$Verb, [string[]]$Lines, [int]$Seconds)
    # Values are sent first, in a file that is read only as data. The script is constant text.
    if ($Lines.Count -gt 0) {
        $null = Send-WinhostInput $Key @('/usr/bin/tee', '/var/lib/winhost.wanted') "$($Lines -join "`n")`n" 120
    }
    Send-WinhostInput $Key @('/bin/sh', '-s', $Verb) (Read-WinhostDistroScript) $Seconds
}

function Send-WinhostInput {
    param($Key, [string[]]$Command, [string]$Text, [int]$Seconds)
    $path = "$(Read-WinhostJobFolder $Key.account)\input-$([System.Guid]::NewGuid().ToString('N'))"
    Write-WinhostFile $path (New-WinhostEncoding 'utf-8').GetBytes($Text)
    $ended = $false
    try {
        Invoke-WinhostDistroCommand $Key $Command $path $Seconds
        $ended = $true
    }
    finally {
        Invoke-WinhostCleanup $ended "$path could not be removed" { Remove-WinhostFile $path }
    }
}

function Read-WinhostDistroScript {
    # Returns the script with the line ends of Linux, independent of how this text was sent.
    @'
# winhost, inside a distro as root: sh -s look|conf|open|close. What is wanted stands in a file, a line each.
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C
DEBIAN_FRONTEND=noninteractive
export PATH LC_ALL DEBIAN_FRONTEND
umask 022

desired=/var/lib/winhost.wanted
found=/var/lib/winhost.found
conf_file=/etc/wsl.conf
network_file=/etc/systemd/network/10-winhost.network
resolver_file=/etc/resolv.conf
sshd_file=/etc/ssh/sshd_config.d/10-winhost.conf
unit_file=/etc/systemd/system/ssh.service.d/winhost.conf
host_key=/etc/ssh/ssh_host_ed25519_key.pub
keys_file=/root/.ssh/authorized_keys

refuse() {
    echo "winhost: $1" >&2
    exit 3
}

# ---- lines: NAME VALUE

said() {
    if [ -f "$1" ]; then
        sed -n "s/^$2 //p" "$1"
    fi
}

note() {
    # What was so before us, once: it is what we go back to.
    if [ -z "$(said "$found" "$1")" ]; then
        printf '%s %s\n' "$1" "$2" >> "$found"
    fi
}

forget() {
    if [ -f "$found" ]; then
        sed "/^$1 /d" "$found" | put "$found" 0600
    fi
}

# ---- files: beside, then over it

put() {
    mkdir -p "$(dirname "$1")"
    cat > "$1.winhost"
    chmod "$2" "$1.winhost"
    mv -f "$1.winhost" "$1"
}

text_of() {
    # A link leads to what is not ours: WSL makes one of resolv.conf, and makes it again where there is no file.
    if [ -f "$1" ] && [ ! -L "$1" ]; then
        printf ':%s' "$(base64 -w 0 < "$1")"
    else
        printf -- -
    fi
}

put_desired() {
    encoded=$(said "$desired" "$1")
    case "$encoded" in
    '') return 0 ;;
    -)
        encoded=$(said "$found" "$1")
        forget "$1"
        ;;
    *) note "$1" "$(text_of "$2")" ;;
    esac
    case "$encoded" in
    :*) printf '%s' "${encoded#:}" | base64 -d | put "$2" 0644 ;;
    -) rm -f "$2" ;;
    esac
}

tell_file() {
    # Only what we wrote.
    if [ -n "$(said "$found" "$1")" ] && [ -f "$2" ]; then
        printf '%s %s\n' "$1" "$(text_of "$2")"
    fi
}

# ---- units

enabled() {
    # Nothing where there is no such unit, which newer systemd says in a word.
    systemctl is-enabled "$1" 2> /dev/null | grep -vx not-found || true
}

with_systemd() {
    if [ ! -d /run/systemd/system ]; then
        refuse 'systemd does not run here'
    fi
    left=60
    until systemctl show-environment > /dev/null 2>&1; do
        left=$((left - 1))
        if [ "$left" = 0 ]; then
            refuse 'systemd does not answer'
        fi
        sleep 1
    done
}

# ---- look

linked() {
    # Whoever listens where no cable leads, hears nobody.
    case "$1" in
    none) return 1 ;;
    bridged) [ "$(cat /sys/class/net/eth0/carrier 2> /dev/null || true)" = 1 ] ;;
    esac
}

look() {
    tell_file conf "$conf_file"
    tell_file network "$network_file"
    tell_file resolver "$resolver_file"
    if [ -f "$sshd_file" ]; then
        sed -n -e 's/^ListenAddress \[\(.*\)\]:\([0-9]*\)$/listen \1\nport \2/p' \
            -e 's/^ListenAddress \([0-9.]*\):\([0-9]*\)$/listen \1\nport \2/p' "$sshd_file"
        # Both lines or nothing: the one means nothing without the other.
        sed -n -e '/^Match Address /{N;s|^Match Address \*,!127.0.0.0/8,!::1/128,!\(.*\)\n    DenyUsers \*$|\1|p;}' "$sshd_file" \
            | tr -d '!' | tr ',' '\n' | sed 's/^/from /'
    fi
    if [ -f "$host_key" ]; then
        printf 'host %s\n' "$(cut -d ' ' -f 1,2 "$host_key")"
    fi
    said "$found" key | while read -r line; do
        if grep -qxF -e "$line" "$keys_file" 2> /dev/null; then
            printf 'key %s\n' "$line"
        fi
    done
    mode=$(wslinfo --networking-mode 2> /dev/null || true)
    if systemctl is-active --quiet ssh.service 2> /dev/null && linked "$mode"; then
        echo 'active yes'
    fi
    # Only a bridge gives it an address that others can use; of several the first is that of the bridge.
    if [ "$mode" = bridged ]; then
        ip -4 -o address show scope global | sed -n -e 's|^.* inet \([0-9.]*\)/.*$|address \1|p' | head -n 1
    fi
    echo 'end .'
}

# ---- conf: what has to be there before the distro can be reached

conf() {
    put_desired conf "$conf_file"
    put_desired resolver "$resolver_file"
    put_desired network "$network_file"
    # systemd may not run yet: it finds its links when it starts.
    case "$(said "$desired" network)" in
    '') ;;
    -)
        if [ "$(said "$found" networkd)" = disabled ]; then
            systemctl disable systemd-networkd.service > /dev/null
        fi
        forget networkd
        ;;
    *)
        note networkd "$(enabled systemd-networkd.service)"
        systemctl enable systemd-networkd.service > /dev/null
        ;;
    esac
}

# ---- open: the way in

sshd_text() {
    where="$2:$1"
    case "$2" in
    *:*) where="[$2]:$1" ;;
    esac
    cat <<END
# Written by winhost.
ListenAddress $where
PubkeyAuthentication yes
AuthenticationMethods publickey
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitEmptyPasswords no
PermitRootLogin prohibit-password
AllowAgentForwarding no
X11Forwarding no
ClientAliveInterval 15
ClientAliveCountMax 4
END
    # Here and not in a packet filter, which would be one more package and one more service that may not run; and for
    # everybody, not in front of our key alone. Who is on this machine already is no network.
    if [ -n "$3" ]; then
        printf 'Match Address *,!127.0.0.0/8,!::1/128%s\n    DenyUsers *\n' "$3"
    fi
}

allowed() {
    said "$desired" from | sed 's/^/,!/' | tr -d '\n'
}

unit_text() {
    cat <<END
# Written by winhost.
[Unit]
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Restart=on-failure
RestartSec=2
END
}

install_missing() {
    set --
    [ -x /usr/sbin/sshd ] || set -- "$@" openssh-server
    [ -x /usr/bin/python3 ] || set -- "$@" python3
    if [ $# = 0 ]; then
        return 0
    fi
    # One source of many that does not answer is not yet a package that cannot be had.
    apt-get -q -o DPkg::Lock::Timeout=600 update 1>&2 || true
    # A new Ubuntu may be updating itself.
    apt-get -q -y --no-install-recommends -o DPkg::Lock::Timeout=600 -o Dpkg::Options::=--force-confdef \
        -o Dpkg::Options::=--force-confold install "$@" 1>&2
}

put_keys() {
    # Lines of ours that are no longer wanted go, those that are wanted come, and what is not ours stays.
    if [ ! -e "$keys_file" ]; then
        note keys none
    fi
    mkdir -p -m 0700 "$(dirname "$keys_file")"
    touch "$keys_file"
    said "$found" added > "$keys_file.added"
    grep -vxF -f "$keys_file.added" "$keys_file" > "$keys_file.winhost" || true
    rm -f "$keys_file.added"
    forget added
    forget key
    said "$desired" key | while read -r line; do
        printf 'key %s\n' "$line" >> "$found"
        if ! grep -qxF -e "$line" "$keys_file.winhost"; then
            printf 'added %s\n' "$line" >> "$found"
            printf '%s\n' "$line" >> "$keys_file.winhost"
        fi
    done
    chmod 0600 "$keys_file.winhost"
    mv -f "$keys_file.winhost" "$keys_file"
}

check_sshd() {
    mkdir -p -m 0755 /run/sshd
    if ! problem=$(sshd -t 2>&1); then
        rm -f "$sshd_file"
        refuse "sshd refuses its configuration: $problem"
    fi
}

open() {
    with_systemd
    if [ -x /usr/sbin/sshd ]; then
        note server yes
        note service "$(enabled ssh.service)."
        note socket "$(enabled ssh.socket)."
    else
        note server no
    fi
    # Before the package, which starts sshd: it never listens anywhere else, and never asks for a password.
    sshd_text "$(said "$desired" port)" "$(said "$desired" listen)" "$(allowed)" | put "$sshd_file" 0644
    unit_text | put "$unit_file" 0644
    install_missing
    ssh-keygen -A > /dev/null
    check_sshd
    put_keys
    systemctl daemon-reload
    # Ubuntu starts sshd by a socket, which would take the address before it is there.
    if [ -n "$(enabled ssh.socket)" ]; then
        systemctl disable --now ssh.socket > /dev/null
    fi
    if [ "$(said "$desired" active)" = yes ]; then
        systemctl enable ssh.service > /dev/null
        systemctl restart ssh.service
    else
        systemctl disable --now ssh.service > /dev/null
    fi
}

# ---- close: as it was found

put_unit() {
    case "$(said "$found" "$2")" in
    enabled*) systemctl enable --now "$1" > /dev/null ;;
    *)
        if [ -n "$(enabled "$1")" ]; then
            systemctl disable --now "$1" > /dev/null
        fi
        ;;
    esac
}

close() {
    with_systemd
    rm -f "$desired"
    put_keys
    if [ "$(said "$found" keys)" = none ] && [ ! -s "$keys_file" ]; then
        rm -f "$keys_file"
        rmdir "$(dirname "$keys_file")" 2> /dev/null || true
    fi
    forget keys
    rm -f "$sshd_file" "$unit_file"
    rmdir "$(dirname "$unit_file")" 2> /dev/null || true
    systemctl daemon-reload
    if [ "$(said "$found" server)" = no ]; then
        systemctl disable --now ssh.socket ssh.service > /dev/null 2>&1 || true
        apt-get -q -y -o DPkg::Lock::Timeout=600 purge openssh-server 1>&2
    else
        systemctl stop ssh.service
        put_unit ssh.socket socket
        put_unit ssh.service service
    fi
    forget server
    forget service
    forget socket
}

main() {
    case "$1" in
    look) look ;;
    # Each on a line of its own: before && nothing that fails would end it.
    conf)
        conf
        rm -f "$desired"
        ;;
    open)
        open
        rm -f "$desired"
        ;;
    close) close ;;
    *) refuse "$1 is nothing that it can do" ;;
    esac
}

main "$1" < /dev/null
'@ -replace '\r', ''
}
