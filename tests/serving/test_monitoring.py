"""`winhost render monitoring`: what it writes, checked by promtool, and a real Prometheus that watches a gateway."""

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.gateway.running import METRICS_KEY, MODEL, gateway, settings_for
from tests.gateway.test_engine_metrics import RUNNING
from tests.processes import PATIENCE_S, started
from winhost.cli import winhost
from winhost.gateway.gateway_metrics import GatewayMetrics, TurnMetrics
from winhost.gateway.gpu_metrics import gpu_lines

ALERTS = Path(__file__).parents[1] / "data/monitoring/alerts.yml"
# As vLLM 0.32.0 and others name them; winhost serve status reads these names.
ENGINE = {"vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:kv_cache_usage_perc"}
OF_READING = {"winhost_gateway_engine_metrics", "winhost_gateway_gpus_read"}
NAME = re.compile(r"\b(?:winhost_|gen_ai_|hw_|vllm:)[a-z_:]+(?![a-z_:]*=)")


def rendered(folder: Path, *words: str) -> Path:
    result = CliRunner().invoke(winhost, ["render", "monitoring", *words, "-o", str(folder)])
    assert result.exit_code == 0, result.output
    return folder


def told() -> set[str]:
    """Names of all metrics that a gateway tells."""
    counts = {"model_requests_waiting": {"a": 0}, "model_requests_running": {"a": 0}}
    now = {"requests_running": 0, "requests_waiting": 0, "held_body_bytes": 0, "connections": 0}
    lines = [*GatewayMetrics().text(now, TurnMetrics().lines({"a": "awake"}, counts)).splitlines(), *gpu_lines([])]
    return {line.split()[2] for line in lines if line.startswith("# TYPE")} | OF_READING | ENGINE


def test_rules_and_dashboard_ask_for_nothing_that_nobody_tells(tmp_path: Path) -> None:
    folder = rendered(tmp_path)
    rules = yaml.safe_load((folder / "winhost-rules.yml").read_text())
    panels = json.loads((folder / "winhost-dashboard.json").read_text())["panels"]
    exprs = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    exprs += [target["expr"] for panel in panels for target in panel["targets"]]
    labels = {"hw_id", "hw_name", "hw_type", "hw_state", "gen_ai_request_model"}
    found = {re.sub("_bucket$", "", name) for expr in exprs for name in NAME.findall(expr)} - labels
    recorded = {rule["record"] for group in rules["groups"] for rule in group["rules"] if "record" in rule}
    assert found - told() - recorded - {"vllm:"} == set()
    assert recorded <= {name for expr in exprs for name in re.findall(r"winhost:[a-z_0-9:]+", expr)}


def test_the_check_that_is_named_can_be_typed(tmp_path: Path) -> None:
    result = CliRunner().invoke(winhost, ["render", "monitoring", "-o", str(tmp_path / "my files")])
    assert f"promtool check config '{tmp_path}/my files/prometheus.yml'" in " ".join(result.output.split())


def test_each_alert_has_a_test_of_promtool() -> None:
    tested = {case["alertname"] for test in yaml.safe_load(ALERTS.read_text())["tests"]
              for case in test.get("alert_rule_test", ()) if case.get("exp_alerts")}  # fmt: skip
    rules = yaml.safe_load((Path(__file__).parents[2] / "winhost/serving/monitoring_rules.yml").read_text())
    assert tested == {rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule}


def test_a_key_goes_to_another_machine_by_tls_or_consent(tmp_path: Path) -> None:
    for words, code in ((("--gateway", "10.0.0.5:8443"), 2), (("--gateway", "10.0.0.5:8443", "--plain-http"), 0)):
        result = CliRunner().invoke(winhost, ["render", "monitoring", *words, "-o", str(tmp_path / "files")])
        assert result.exit_code == code
    rendered(tmp_path / "files", "--gateway", "[fd00::5]:8443", "--gateway-ca", "/etc/ca.pem")  # over its own files
    first = yaml.safe_load((tmp_path / "files/prometheus.yml").read_text())["scrape_configs"][0]
    assert (first["scheme"], first["tls_config"]) == ("https", {"ca_file": "/etc/ca.pem"})
    assert first["static_configs"] == [{"targets": ["[fd00::5]:8443"]}]


@pytest.mark.real
def test_promtool_takes_it_and_each_alert_comes_when_it_should(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(METRICS_KEY)
    folder = rendered(tmp_path / "files", "--key-file", str(tmp_path / "key"))
    shutil.copy(ALERTS, folder)
    for words in (("check", "config", "prometheus.yml"), ("test", "rules", "alerts.yml")):
        done = subprocess.run(["promtool", *words], cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.real
def test_a_prometheus_reads_gateway_and_engine(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(METRICS_KEY)
    ports = [free_port() for _ in range(2)]
    at = f"127.0.0.1:{ports[0]}"
    folder = rendered(tmp_path / "files", "--gateway", at, "--key-file", str(tmp_path / "key"))
    config = folder / "prometheus.yml"
    config.write_text(config.read_text().replace("15s", "1s"))
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path}/data"]
    listen = {"address": "127.0.0.1", "port": ports[0]}
    with (
        TemporaryDirectory(prefix="door-") as short,
        gateway(Path(short), settings_for(Path(short), listen=listen)) as door,
    ):
        door.engine.metrics = RUNNING
        with started([*command, f"--web.listen-address=127.0.0.1:{ports[1]}"], stderr=subprocess.DEVNULL) as process:
            found = asked(ports[1], "vllm:num_requests_running and on () (count(up == 1) == 2)")
            read = asked(ports[1], 'winhost_gateway_engine_metrics{result="read"}')
            process.terminate()
            process.wait(PATIENCE_S)
    assert (found["metric"]["model"], found["metric"]["model_name"]) == (MODEL, "tiny")
    assert found["value"][1] == "3"
    assert read["metric"]["model"] == MODEL


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def asked(port: int, query: str) -> dict[str, Any]:
    """The first result, once there is one."""
    url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                if found := json.load(answer)["data"]["result"]:
                    return dict(found[0])
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError(query)
