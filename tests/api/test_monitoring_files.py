"""The dashboard and the alert rules of `docs/monitoring` ask only for what is really exported."""

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parent.parent.parent
DASHBOARD = json.loads((ROOT / "docs/monitoring/dashboard.json").read_text())
ALERTS = yaml.safe_load((ROOT / "docs/monitoring/alerts.yaml").read_text())
RULES = {rule["alert"]: rule for group in ALERTS["groups"] for rule in group["rules"]}
PANELS = {panel["title"]: panel for panel in DASHBOARD["panels"]}
EXPRESSIONS = {
    **{name: [rule["expr"]] for name, rule in RULES.items()},
    **{title: [one["expr"] for one in panel["targets"]] for title, panel in PANELS.items()},
}
# Words of PromQL, and what Prometheus itself knows.
KNOWN = {"up", "by", "sum", "avg", "rate", "increase", "histogram_quantile", "and"}
FROM_PROMETHEUS = {"job", "instance"}
EVENTS = {"gridhand_store_errors_total": "code", "gridhand_job_retries_total": "reason"}  # none yet


@pytest.fixture(scope="module")
def exported(server):
    """The names that are exported, each with its labels and the values they have so far."""
    from api_server import Api

    api = Api(server)
    gpus = [{"id": "GPU-1", "model": "A100", "memory": "40GB"}]
    api.ok("POST", "/nodes", {"name": "g1", "capacity": {"cpu": 1}, "gpus": gpus})
    load = {"GPU-1": {"utilization": 50.0, "memory_bytes": 11}}
    others = {"cpu": 0.5, "memory_bytes": 7}
    node = {"cpu": 1.0, "memory_bytes": 5}
    sample = {"node": node, "gpus": load, "others": others, "foreign": {"GPU-1": 1}}
    server.do(server.controller.samples.latest.update, {"g1": sample})
    api.raw("GET", "/metrics", prefix="")
    page = api.raw("GET", "/metrics", prefix="")[2].decode()
    found = {name: {label: set()} for name, label in EVENTS.items()}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return found


def parts(expression):
    """The metrics of an expression, each with its matchers, and the labels it groups by."""
    grouped = set()
    for listed in re.findall(r"by \(([^)]*)\)", expression):
        grouped |= {label.strip() for label in listed.split(",")}
    bare = re.sub(r"by \([^)]*\)|\[\d+m\]|\[\d+h\]", "", expression)
    metrics = re.findall(r"([a-z_]{2,})(?:\{([^}]*)\})?(?!\w|\()", bare)
    return [(name, text) for name, text in metrics if name not in KNOWN], grouped


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_everything_that_is_asked_for_is_exported(exported, name):
    for expression in EXPRESSIONS[name]:
        metrics, grouped = parts(expression)
        assert metrics or name == "GridhandControllerDown", expression
        for metric, matchers in metrics:
            assert metric in exported, expression
            assert grouped <= FROM_PROMETHEUS | set(exported[metric]), expression
            for label, how, value in re.findall(r'(\w+)(=~|!=|=)"([^"]*)"', matchers):
                if label in FROM_PROMETHEUS or how == "!=":
                    continue
                wanted = set(value.split("|")) if how == "=~" else {value}
                assert label == "status" or wanted <= exported[metric][label], expression


def test_everything_of_ours_that_is_exported_is_on_the_dashboard(exported):
    shown = " ".join(one["expr"] for panel in PANELS.values() for one in panel["targets"])
    told = shown + " ".join(rule["expr"] for rule in RULES.values())
    names = {re.sub("_(bucket|sum|count|created)$", "", name) for name in exported}
    ours = {name for name in names if name.startswith("gridhand_")}
    assert {name for name in ours if name not in told} == {"gridhand_build_info"}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_an_alert_says_how_bad_it_is_and_what_to_do(rule):
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    assert {"summary", "description"} <= set(rule["annotations"])
    labels = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    assert labels <= parts(rule["expr"])[1] | {"code", "kind", "method", "route"}


def test_panels_have_numbers_places_and_a_source_that_can_be_chosen():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids)) == len(PANELS)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    [source] = DASHBOARD["templating"]["list"]
    for panel in DASHBOARD["panels"]:
        assert panel["datasource"]["uid"] == f"${{{source['name']}}}"
        for target in panel["targets"]:
            used = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert used <= parts(target["expr"])[1]
