"""The configuration file: what is accepted, and what is said about what is not."""

import pytest

from gridhand.config.cluster_config import ClusterConfig
from gridhand.config.config_errors import InvalidConfig

SHARING = """
resource_sharing:
  enabled: true
  check_interval: 60  # seconds
  offer_expiry: 300   # seconds
  max_offers_per_node: 5
  thresholds:
    gpu_utilization_max: 20.0
    gpu_memory_min_mb: 1024.0
    memory_percent_max: 50.0
    memory_min_gb: 2.0
    cpu_percent_max: 30.0
    cpu_min_cores: 1.0
"""
NODES = """
nodes:
  - name: gpu1
    host: gpu1.example
    port: 22
    user: ann
    ssh_key_path: ~/.ssh/id_ed25519
    gpu_count: 2
    memory_gb: 64
    tags: [gpu, lab]
  - {name: gpu2, cpu: 16, memory: 64GB, gpu_count: 1, gpu_memory: 24GB, gpu_model: A100,
     gpu_capability: "8.0", labels: {room: lab}, price: 1.5, shared: true, resources: {license: 2}}
"""
REST = """
name: lab
queues:
  night: {priority: low, default_duration: 2h, owners: [ann], max_length: 1000, weight: 2,
          quota: {running: {gpu: 2}, max_running_jobs: 10}, limits: {cpu: 8}, defaults: {memory: 4GB}}
quotas: {ann: {running: {cpu: 4, memory: 8GB}, max_queued_jobs: 100}}
alerts: {cpu_percent: 90, webhook: "https://alerts.example/in"}
store: postgresql://grid@db.example/grid
engine: {kind: local}
strategy: best_fit
memory_granularity: 100MB
respect_foreign_use: true
retention: {jobs: 30d, logs: 7d, samples: 86400}
http: {host: 127.0.0.1, port: 7070}
admin_group: wheel
"""


@pytest.mark.parametrize("text", ["", SHARING, NODES, REST, REST + NODES + SHARING])
def test_a_file_reads_the_same_after_it_was_written(text, tmp_path):
    config = ClusterConfig.parse(text)
    path = tmp_path / "cluster_config.yaml"
    config.to_yaml(path)
    assert ClusterConfig.from_yaml(path) == config


def test_partial_thresholds_keep_the_defaults_of_the_rest():
    """O5."""
    text = "resource_sharing: {thresholds: {cpu_percent_max: 10}}"
    thresholds = ClusterConfig.parse(text).resource_sharing.thresholds
    assert (thresholds.cpu_percent_max, thresholds.memory_percent_max) == (10, 50)


def test_blocks_without_a_feature_are_named():
    assert ClusterConfig.parse("strategy: pack\nname: lab").not_used_yet() == []
    assert ClusterConfig.parse(SHARING).not_used_yet() == ["resource_sharing"]


def test_all_problems_are_reported_at_once():
    text = "nam: x\nstrategy: bestfit\nhttp: {port: 0}\nresource_sharing: {check_interval: 5}"
    with pytest.raises(InvalidConfig) as caught:
        ClusterConfig.parse(text, "lab.yaml")
    assert {path for path, _ in caught.value.problems} == {
        "nam", "strategy", "http.port", "resource_sharing.check_interval",
    }  # fmt: skip
    assert str(caught.value).startswith("lab.yaml is not valid:\n  ")


def node(**fields):
    return (
        "nodes: [{name: a, "
        + ", ".join(f"{name}: {value}" for name, value in fields.items())
        + "}]"
    )


def sharing(text):
    return f"resource_sharing: {{{text}}}"


#   the file                                            the path                                    what is said
WRONG = [
    ("nam: lab",                                        "nam",                                      "did you mean name?"),
    ("admin_group: ''",                                 "admin_group",                              "the name of a unix group"),
    ("admin_group: 50",                                 "admin_group",                              "the name of a unix group"),
    ("admin_group: [a]",                                "admin_group",                              "the name of a unix group"),
    ("admin_group: 'a b'",                              "admin_group",                              "the name of a unix group"),
    ("admin_groups: wheel",                             "admin_groups",                             "did you mean admin_group?"),
    ("name: ''",                                        "name",                                     "not empty"),
    ("name: 5",                                         "name",                                     "a text"),
    ("name: null",                                      "name",                                     "a text"),
    ("nodes: []",                                       "nodes",                                    "at least 1"),
    ("nodes: gpu1",                                     "nodes",                                    "a list"),
    ("nodes: [gpu1]",                                   "nodes.0",                                  "a mapping"),
    ("nodes: [{host: a}]",                              "nodes.0.name",                             "is missing"),
    ("nodes: [{name: a/b}]",                            "nodes.0.name",                             "letters, digits"),
    ("nodes: [{name: a}, {name: a}]",                   "",                                         "each node once; a is there 2 times"),
    (node(gpu_count=-1),                                "nodes.0.gpu_count",                        "-1 is not allowed: at least 0"),
    (node(gpu_count=1.5),                               "nodes.0.gpu_count",                        "a whole number"),
    (node(gpu_count="true"),                            "nodes.0.gpu_count",                        "a whole number"),
    (node(gpu_cout=1),                                  "nodes.0.gpu_cout",                         "did you mean gpu_count?"),
    (node(memory_gb=0),                                 "nodes.0.memory_gb",                        "above 0"),
    (node(memory_gb="'8GB'"),                           "nodes.0.memory_gb",                        "a number"),
    (node(memory="5XB"),                                "nodes.0.memory",                           "'5XB' is not allowed: a number of MB"),
    (node(memory="-1"),                                 "nodes.0.memory",                           "-1 is not allowed"),
    (node(memory="8GB", memory_gb=8),                   "nodes.0",                                  "memory or memory_gb, not both"),
    (node(cpu=4, cpu_cores=4),                          "nodes.0",                                  "cpu or cpu_cores, not both"),
    (node(cpu=".nan"),                                  "nodes.0.cpu",                              "not negative"),
    (node(cpu=".inf"),                                  "nodes.0.cpu",                              "not negative"),
    (node(cpu="true"),                                  "nodes.0.cpu",                              "True is not allowed"),
    (node(port=0),                                      "nodes.0.port",                             "at least 1"),
    (node(port=70000),                                  "nodes.0.port",                             "at most 65535"),
    (node(port="'22'"),                                 "nodes.0.port",                             "a whole number"),
    (node(host="''"),                                   "nodes.0.host",                             "not empty"),
    (node(tags="gpu"),                                  "nodes.0.tags",                             "a list"),
    (node(tags="[a b]"),                                "nodes.0.tags.0",                           "'a b' is not allowed"),
    (node(labels="[a]"),                                "nodes.0.labels",                           "a mapping"),
    (node(gpu_capability="8.0"),                        "nodes.0.gpu_capability",                   "a text"),
    (node(gpu_capability="'x'"),                        "nodes.0.gpu_capability",                   "'x' is not allowed"),
    (node(resources="{license: -1}"),                   "nodes.0.resources",                        "is not allowed"),
    (node(price=-1),                                    "nodes.0.price",                            "-1 is not allowed"),
    (node(shared="'yes'"),                              "nodes.0.shared",                           "true or false"),
    (sharing("check_interval: 5"),                      "resource_sharing.check_interval",          "5 is not allowed: at least 10"),
    (sharing("check_interval: soon"),                   "resource_sharing.check_interval",          "'soon' is not allowed: a number of seconds"),
    (sharing("check_interval: '60'"),                   "resource_sharing.check_interval",          "text with units"),
    (sharing("offer_expiry: 59"),                       "resource_sharing.offer_expiry",            "at least 60"),
    (sharing("max_offers_per_node: 0"),                 "resource_sharing.max_offers_per_node",     "at least 1"),
    (sharing("enabled: 1"),                             "resource_sharing.enabled",                 "true or false"),
    (sharing("enable: true"),                           "resource_sharing.enable",                  "did you mean enabled?"),
    (sharing("owner_returns: shoot"),                   "resource_sharing.owner_returns",           "one of pause, vacate, keep"),
    (sharing("thresholds: {cpu_percent_max: 101}"),     "resource_sharing.thresholds.cpu_percent_max", "at most 100"),
    (sharing("thresholds: {memory_min_gb: -1}"),        "resource_sharing.thresholds.memory_min_gb", "at least 0"),
    (sharing("thresholds: {gpu_max: 1}"),               "resource_sharing.thresholds.gpu_max",      "is not a key here"),
    (sharing("thresholds: 5"),                          "resource_sharing.thresholds",              "a mapping"),
    ("queues: {a b: {}}",                               "queues.a b",                               "'a b' is not allowed"),
    ("queues: {q: {priority: hi}}",                     "queues.q.priority",                        "one of urgent, high, medium, low"),
    ("queues: {q: {weight: 0}}",                        "queues.q.weight",                          "above 0"),
    ("queues: {q: {limits: {cpu: x}}}",                 "queues.q.limits",                          "is not allowed"),
    ("queues: {q: {quota: {running: 4}}}",              "queues.q.quota.running",                   "is not allowed"),
    ("quotas: {ann: {max_queued_jobs: -1}}",            "quotas.ann.max_queued_jobs",               "at least 0"),
    ("quotas: {ann: {max_jobs: 1}}",                    "quotas.ann.max_jobs",                      "is not a key here"),
    ("alerts: {cpu_percent: 150}",                      "alerts.cpu_percent",                       "at most 100"),
    ("alerts: {webhook: http://x.example}",             "alerts.webhook",                           "is not allowed"),
    ("store: 5",                                        "store",                                    "a text"),
    ("engine: {kind: slurm}",                           "engine.kind",                              "one of local, ray, external"),
    ("strategy: bestfit",                               "strategy",                                 "did you mean best_fit?"),
    ("strategy: 5",                                     "strategy",                                 "any of"),
    ("memory_granularity: 0.1XB",                       "memory_granularity",                       "a number of MB"),
    ("memory_granularity: 0",                           "memory_granularity",                       "more than 0"),
    ("respect_foreign_use: maybe",                      "respect_foreign_use",                      "true or false"),
    ("retention: {jobs: 5x}",                           "retention.jobs",                           "a number of seconds"),
    ("retention: {jobs: 0}",                            "retention.jobs",                           "above 0"),
    ("http: {port: 80, tls_cert: c.pem}",               "http",                                     "tls_cert and tls_key together"),
    ("http: {insecure: 'no'}",                          "http.insecure",                            "true or false"),
    ("- a\n- b",                                        "",                                         "must be a mapping"),
    ("name: a\nname: b",                                "",                                         "line 2, column 1: name is there twice"),
    ("a: &x 1\nb: *x",                                  "",                                         "aliases are not allowed"),
    ("1: 2",                                            "",                                         "a key must be text"),
    ("name: [",                                         "",                                         "line 1"),
    ("name: !!python/object:os.system {}",              "",                                         "constructor"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "path", "said"), WRONG, ids=[row[0] for row in WRONG])
def test_a_wrong_file_is_refused_with_the_path_and_what_is_allowed(text, path, said):
    with pytest.raises(InvalidConfig) as caught:
        ClusterConfig.parse(text)
    [(where, what)] = caught.value.problems
    assert (where, said in what) == (path, True), caught.value.problems


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InvalidConfig, match="No such file"):
        ClusterConfig.from_yaml(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidConfig, match="not UTF-8"):
        ClusterConfig.from_yaml(tmp_path / "bytes.yaml")


def test_a_huge_or_deep_file_is_refused():
    with pytest.raises(InvalidConfig, match="more than 1,000,000 characters"):
        ClusterConfig.parse("a" * 1_000_001)
    with pytest.raises(InvalidConfig, match="nested too deeply"):
        ClusterConfig.parse("name: " + "[" * 50_000)
