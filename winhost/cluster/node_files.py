"""The files that make a Linux a node: the configuration of k3s, and the unit that runs it."""

from winhost.cluster.cluster_names import GPU_NODE
from winhost.cluster.node_request import NodeRequest

CONFIG, TOKEN, UNIT = "/etc/rancher/k3s/config.yaml", "/etc/rancher/k3s/join-token", "winhost-k3s.service"
UNIT_FILE = f"/usr/local/lib/systemd/system/{UNIT}"
PROGRAM = "/usr/local/bin/k3s"


def config_file(request: NodeRequest) -> str:
    """The token of a cluster that is joined is in a file of its own, which root alone reads."""
    lines = ["# Written by winhost.", f"node-name: {request.node}", "node-label:", f"- {GPU_NODE}=true"]
    if request.wsl is not None:
        # All distros share one network, whose adapter this is.
        lines.append("flannel-iface: eth0")
    if request.join is not None:
        lines += [f"server: {request.join.server}", f"token-file: {TOKEN}"]
    else:
        # Nobody but root reads what leads to the API; Secrets are encrypted on disk. Ports 80 and 443 stay free.
        lines += ['write-kubeconfig-mode: "0600"', "secrets-encryption: true", "disable:", "- traefik"]
    return "\n".join([*lines, ""])


def unit_file(request: NodeRequest) -> str:
    """Pods outlive a restart of k3s, as its own installer has it."""
    shared = ["# Pods see what is mounted later.", "ExecStartPre=-/bin/mount --make-rshared /"] if request.wsl else []
    return "\n".join(
        [
            "# Written by winhost: a node of a Kubernetes cluster.",
            "[Unit]",
            "Description=k3s, a node of a Kubernetes cluster",
            "Wants=network-online.target",
            "After=network-online.target",
            "",
            "[Service]",
            "Type=notify",
            *shared,
            "ExecStartPre=-/sbin/modprobe br_netfilter",
            "ExecStartPre=-/sbin/modprobe overlay",
            f"ExecStart={PROGRAM} {'agent' if request.join else 'server'}",
            "KillMode=process",
            "Delegate=yes",
            "LimitNOFILE=1048576",
            "LimitNPROC=infinity",
            "LimitCORE=0",
            "TasksMax=infinity",
            "TimeoutStartSec=600",
            "Restart=always",
            "RestartSec=5",
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )
