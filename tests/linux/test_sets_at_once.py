"""apt simulates all known sets in parallel, because each start takes long."""

from tests.linux.sandbox import Sandbox
from winhost.connect.agent import Agent

# Each waits for another one to begin, and says whether one did.
APT_GET = """#!/bin/sh
mkdir -p /run/began && touch "/run/began/$$"
for try in $(seq 100); do
    set -- /run/began/*
    [ $# -gt 1 ] && break
    sleep 0.05
done
echo "Inst together-$([ $# -gt 1 ] && echo yes || echo no) (1.0 Stand-In:1 [amd64])"
"""
APT_CACHE = """#!/bin/sh
shift 2
for name; do
    printf '%s:\\n  Installed: (none)\\n  Candidate: 1.0\\n' "$name"
done
"""
DPKG_QUERY = "#!/bin/sh\n"


def test_they_run_side_by_side(sandbox: Sandbox, agent: Agent) -> None:
    for name, text in {"apt-get": APT_GET, "apt-cache": APT_CACHE, "dpkg-query": DPKG_QUERY}.items():
        sandbox.write(f"/usr/sbin/{name}", text, 0o755)
    answer = agent.read(["AptPackages"])["AptPackages"]
    assert isinstance(answer, tuple)
    found = {record.key["packages"]: record.state["to_add"] for record in answer}
    assert len(found) >= 4
    assert set(map(str, found.values())) == {"['together-yes 1.0']"}, found
