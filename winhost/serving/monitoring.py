"""Files with which Prometheus and Grafana monitor gateways: a scrape configuration, rules with alerts, a dashboard."""

import json
from collections.abc import Sequence
from pathlib import Path

import yaml

from winhost import __version__
from winhost.core.answers import Json
from winhost.core.dataclass import dataclass

RULES = Path(__file__).with_name("monitoring_rules.yml")


@dataclass(frozen=True)
class MonitoringRequest:
    """gateways: ADDRESS:PORT of each, as Prometheus reaches it; key_file: the path of a key for metrics on the machine
    of Prometheus; ca, name: of the gateways' certificate, if they have TLS.
    """

    gateways: tuple[str, ...]
    key_file: str
    tls: bool
    ca: str | None = None
    name: str | None = None


def monitoring_files(request: MonitoringRequest) -> dict[str, str]:
    """Return the texts of the files by name, for one folder."""
    head = f"# Written by winhost {__version__}."
    return {
        "prometheus.yml": f"{head}\n{yaml.safe_dump(_config(request), sort_keys=False)}",
        "winhost-rules.yml": f"{head}\n{RULES.read_text('utf-8')}",
        "winhost-dashboard.json": json.dumps({"description": head[2:], **_dashboard()}, indent=2) + "\n",
    }


def _config(request: MonitoringRequest) -> dict[str, object]:
    names = {"ca_file": request.ca, "server_name": request.name}
    tls = {"tls_config": {name: value for name, value in names.items() if value}} if request.tls else {}
    jobs = (("winhost", "/metrics"), ("winhost-engines", "/metrics/engines"))
    return {
        "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
        "rule_files": ["winhost-rules.yml"],
        "scrape_configs": [
            {
                "job_name": job,
                "metrics_path": path,
                "scheme": "https" if request.tls else "http",
                "authorization": {"credentials_file": request.key_file},
                **tls,
                "static_configs": [{"targets": [*request.gateways]}],
            }
            for job, path in jobs
        ],
    }


# Title, Grafana's unit, and the expressions by their legends.
_PANELS: Sequence[tuple[str, str, dict[str, str]]] = (
    ("Requests", "reqps", {"{{model}} {{status}}": "sum by (model, status) (winhost:requests:rate5m)"}),
    (
        "First token",
        "s",
        {
            "{{gen_ai_request_model}} p95": "winhost:first_token_seconds:p95_5m",
            "{{gen_ai_request_model}} p50": "histogram_quantile(0.5, sum by (gen_ai_request_model, le) ("
            "rate(gen_ai_server_time_to_first_token_seconds_bucket[5m])))",
        },
    ),
    ("Whole request", "s", {"{{gen_ai_request_model}} p95": "winhost:request_seconds:p95_5m"}),
    ("Refused", "reqps", {"{{reason}}": "sum by (reason) (rate(winhost_gateway_refused_total[5m]))"}),
    (
        "With engines and waiting",
        "short",
        {"running": "winhost_gateway_requests_running", "waiting": "winhost_gateway_requests_waiting"},
    ),
    ("State of engines", "short", {"{{model}} {{result}}": "winhost_gateway_engine_metrics"}),
    (
        "Tokens",
        "short",
        {
            "{{model}} generated": "sum by (model) (rate(vllm:generation_tokens_total[5m]))",
            "{{model}} of prompts": "sum by (model) (rate(vllm:prompt_tokens_total[5m]))",
        },
    ),
    ("KV cache", "percentunit", {"{{model}}": '{__name__=~"vllm:(kv|gpu)_cache_usage_perc"}'}),
    (
        "GPU memory",
        "bytes",
        {"{{hw_name}}": "hw_gpu_memory_usage_bytes", "{{hw_name}} of": "hw_gpu_memory_limit_bytes"},
    ),
    ("GPU utilization", "percentunit", {"{{hw_name}}": "hw_gpu_utilization_ratio"}),
    ("GPU power", "watt", {"{{hw_name}}": "hw_power_watts", "{{hw_name}} limit": "winhost_gpu_power_limit_watts"}),
    ("GPU temperature", "celsius", {"{{hw_name}}": "hw_temperature_celsius"}),
    (
        "GPU slowed down",
        "short",
        {"{{hw_name}} {{reason}}": 'winhost_gpu_throttled{reason!~"applications_clocks|display_clocks"}'},
    ),
    ("GPU errors", "short", {"{{hw_name}} {{error_type}}": "increase(hw_errors_total[1h])"}),
)
_SOURCE: dict[str, Json] = {"type": "prometheus", "uid": "${source}"}


def _dashboard() -> dict[str, object]:
    source = {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    return {
        "title": "winhost",
        "uid": "winhost",
        "schemaVersion": 36,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source]},
        "panels": [
            {
                "id": index + 1,
                "type": "timeseries",
                "title": title,
                "datasource": _SOURCE,
                "gridPos": {"h": 8, "w": 12, "x": index % 2 * 12, "y": index // 2 * 8},
                "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                "targets": [
                    {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": expr, "legendFormat": legend}
                    for number, (legend, expr) in enumerate(expressions.items())
                ],
            }
            for index, (title, unit, expressions) in enumerate(_PANELS)
        ],
    }
