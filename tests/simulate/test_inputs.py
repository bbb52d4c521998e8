"""Files of nodes and tasks: what they mean, and what is said of those that are wrong."""

import pytest

from gridhand.core.errors import GridError, InvalidInput
from gridhand.core.model.nodes import Node
from gridhand.core.model.requests import Request
from gridhand.simulate.inputs import read_nodes, read_tasks

OPENB_NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,64000,262144,2,P100\nn0,500,1024,0,\n"
OPENB_TASKS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,creation_time,deletion_time\n"
    "p1,12000,16384,1,460,P100|T4,LS,100,160\n"
    "p2,6000,0,2,1000,,BE,100,100\n"
    "p3,500,1,0,0,,BE,,\n"
)


@pytest.fixture
def write(tmp_path):
    def write(text, name="some.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.fixture
def nodes():
    return [Node.of("n0", cpu=8, memory="8GB", gpus=[{"model": "T4"}] * 2, fpga=1)]


def test_nodes_of_openb(write):
    first, second = read_nodes(write(OPENB_NODES))
    assert first == Node.of("n0", cpu=0.5, memory="1GiB")
    assert second == Node.of("n1", cpu=64, memory="256GiB", gpus=[{"model": "P100"}] * 2)


def test_tasks_of_openb(write, nodes):
    one, two, three = read_tasks(write(OPENB_TASKS), nodes)
    assert one.name == "p1"
    assert one.asked == Request.of(cpu=12, memory="16GiB", gpu=0.46, gpu_model="P100|T4")
    assert one.duration_s == 60
    assert two.asked == Request.of(cpu=6, gpu=2)
    assert two.duration_s is None  # it ended as it began: the trace does not know
    assert three.asked == Request.of(cpu=0.5, memory="1MiB")
    assert three.duration_s is None


def test_tasks_of_openb_with_fewer_columns(write, nodes):
    whole, share = read_tasks(write("name,num_gpu,gpu_milli\na,4,\nb,,250\n"), nodes)
    assert whole.asked == Request.of(gpu=4)
    assert share.asked == Request.of(gpu=0.25)


def test_our_own_csv(write, nodes):
    path = write(
        "name,count,cpu,memory,gpu,gpu_memory,gpu_model,labels,price\n"
        "big,2,8,16GB,2,40GB,A100,zone=a;rack=1,1.5\n\nsmall,,0.5,512,,,,,\n"
    )
    gpus = [{"model": "A100", "memory": "40GB"}] * 2
    labels = {"zone": "a", "rack": "1"}
    assert read_nodes(path) == [
        Node.of("big-1", cpu=8, memory="16GB", gpus=gpus, labels=labels, price=1.5),
        Node.of("big-2", cpu=8, memory="16GB", gpus=gpus, labels=labels, price=1.5),
        Node.of("small", cpu=0.5, memory="512MB"),
    ]
    path = write("cpu,gpu_memory,labels,exclude,duration,fpga\n1,4GB,zone=a,x|y,2h,\n1,,,,,1\n")
    one, two = read_tasks(path, nodes)
    assert one.asked == Request.of(
        cpu=1, gpu_memory="4GB", labels={"zone": "a"}, exclude=["x", "y"]
    )
    assert (one.name, one.duration_s) == ("task-1", 7200)
    assert two.asked == Request.of(cpu=1, fpga=1)


YAML_NODES = """
nodes:
  - {name: a, count: 10, cpu: 8, gpus: [{model: T4, memory: 16GB, count: 2}, {model: L4}]}
tasks:
  - {name: t, count: 2, gpu: 0.5, cpu: 2, fallback: cpu, duration: 90}
"""


@pytest.mark.parametrize("name", ["some.yaml", "some.YML", "some"])
def test_our_own_yaml(write, name):
    path = write(YAML_NODES, name)
    nodes = read_nodes(path)
    assert [node.name for node in nodes] == [f"a-{number:02}" for number in range(1, 11)]
    assert [gpu.model for gpu in nodes[0].gpus] == ["T4", "T4", "L4"]
    assert [gpu.memory_bytes for gpu in nodes[9].gpus] == [16 * 10**9] * 2 + [0]
    one, two = read_tasks(path, nodes)
    assert [one.name, two.name] == ["t-1", "t-2"]
    assert one.asked == Request.of(cpu=2, gpu=0.5, fallback="cpu")
    assert one.duration_s == 90


def test_a_list_in_yaml_and_csv_without_an_ending(write):
    assert read_nodes(write("- {cpu: 1}\n- {cpu: 2}\n", "list.yaml"))[1] == Node.of("node-2", cpu=2)
    assert read_nodes(write("name,cpu\nx,4\n", "table"))[0] == Node.of("x", cpu=4)


def test_what_asks_for_the_same_is_the_same(write, nodes):
    one, two, three = read_tasks(write("name,cpu\na,1\nb,1\nc,2\n"), nodes)
    assert one.asked is two.asked
    assert three.asked is not one.asked


#    what it shows                        file name   text                                     what is said
BAD_NODES = {
    "nothing at all":                    ("n.csv",   "",                                      "n.csv: it has no nodes"),
    "a header alone":                    ("n.csv",   "name,cpu\n",                            "it has no nodes"),
    "an amount that is none":            ("n.csv",   "name,cpu\na,1\nb,many\n",               "n.csv, line 3: cpu: 'many' is not valid"),
    "a count that is none":              ("n.csv",   "name,cpu,count\na,1,1.5\n",             "n.csv, line 2: count: '1.5' is not valid"),
    "a count beyond all bounds":         ("n.csv",   "name,cpu,count\na,1,9999999999\n",      "line 2: count"),
    "a count that is infinite":          ("n.csv",   "name,cpu,count\na,1,inf\n",             "line 2: count: 'inf'"),
    "a name that is none":               ("n.csv",   "name,cpu\na b,1\n",                     "n.csv, line 2: node: 'a b'"),
    "a name twice":                      ("n.csv",   "name,cpu\na,1\na,2\n",                  "n.csv, line 3: name: 'a' is not valid"),
    "a column twice":                    ("n.csv",   "name,cpu,cpu\na,1,2\n",                 "n.csv, line 1: column 3 is named 'cpu'"),
    "more cells than columns":           ("n.csv",   "name,cpu\na,1,2\n",                     "n.csv, line 2: '2' is in no column"),
    "quotes that do not end":            ("n.csv",   'name,cpu\n"a,1\n',                      "n.csv, line 2: unexpected end of data"),
    "no text":                           ("n.csv",   b"\xff\xfe\x00",                         "it is not text"),
    "a misspelt resource":               ("n.csv",   "name,cpus\na,1\n",                      "n.csv, line 2: resource name: 'cpus'"),
    "milli that are none":               ("n.csv",   "sn,cpu_milli\na,x\n",                   "n.csv, line 2: cpu_milli: 'x' is not valid"),
    "too many devices":                  ("n.csv",   "sn,cpu_milli,gpu\na,1,99999\n",         "n.csv, line 2: gpu: '99999'"),
    "a kind without devices":            ("n.csv",   "name,cpu,gpu_model\na,1,T4\n",          "n.csv, line 2: gpu: '0'"),
    "labels that are none":              ("n.csv",   "name,cpu,labels\na,1,x\n",              "n.csv, line 2: labels: 'x'"),
    "tasks given as nodes":              ("n.csv",   "name,cpu_milli,num_gpu\na,1,1\n",       "n.csv, line 2: num_gpu is not a field of nodes"),
    "no YAML":                           ("n.yaml",  "a: [1\nb: 2\n",                         "n.yaml, line 2"),
    "a mapping without nodes":           ("n.yaml",  "machines: []\n",                        "n.yaml: it has machines, but no nodes"),
    "no list":                           ("n.yaml",  "nodes: 7\n",                            "n.yaml: nodes: 7 is not a list"),
    "an entry that is none":             ("n.yaml",  "- cpu\n",                               "n.yaml, entry 1: 'cpu' is not a mapping"),
    "an unknown field of a device":      ("n.yaml",  "- {cpu: 1}\n- {gpus: [{sort: x}]}\n",   "n.yaml, entry 2: gpus: 'sort'"),
    "two devices with one id":           ("n.yaml",  "- {gpus: [{id: x, count: 2}]}\n",       "n.yaml, entry 1: gpus"),
    "a model beside a list of devices":  ("n.yaml",  "- {gpus: [{}], gpu_model: x}\n",        "n.yaml, entry 1: gpu_model"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "text", "said"), BAD_NODES.values(), ids=BAD_NODES)
def test_bad_nodes(write, name, text, said):
    with pytest.raises(InvalidInput) as caught:
        read_nodes(write(text, name))
    assert said in str(caught.value)
    assert caught.value.hint


#    what it shows                          text                                       what is said
BAD_TASKS = {
    "an amount that is none":              ("name,cpu\na,-1\n",                        "t.csv, line 2: cpu: '-1' is not valid"),
    "nothing asked for":                   ("name,cpu\na,0\n",                         "t.csv, line 2: resources"),
    "one and a half devices":              ("name,gpu\na,1.5\n",                       "t.csv, line 2: gpu: '1.5'"),
    "shares of several devices":           ("name,num_gpu,gpu_milli\na,2,500\n",       "t.csv, line 2: gpu_milli: 500"),
    "devices without a share":             ("name,num_gpu,gpu_milli\na,1,0\n",         "t.csv, line 2: gpu_milli: 0"),
    "more than a whole device":            ("name,num_gpu,gpu_milli\na,1,1500\n",      "t.csv, line 2: gpu_milli: '1500'"),
    "a resource that no node has":         ("name,cpu,fgpa\na,1,1\n",                  "t.csv, line 2: no node has a resource named 'fgpa'; did you mean fpga?"),
    "a node that is not there":            ("name,cpu,node\na,1,n7\n",                 "t.csv, line 2: there is no node named 'n7'; did you mean n0?"),
    "a duration that is none":             ("name,cpu,duration\na,1,soon\n",           "t.csv, line 2: duration: 'soon'"),
    "no time at all":                      ("name,cpu,duration\na,1,0\n",              "t.csv, line 2: duration: '0'"),
    "none of them":                        ("name,cpu,count\na,1,0\n",                 "t.csv: it has no tasks"),
    "nodes given as tasks":                ("sn,cpu_milli\na,1\n",                     "t.csv, line 2: sn is not a field of tasks"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), BAD_TASKS.values(), ids=BAD_TASKS)
def test_bad_tasks(write, nodes, text, said):
    with pytest.raises(GridError) as caught:
        read_tasks(write(text, "t.csv"), nodes)
    assert said in str(caught.value)
    assert caught.value.hint
    assert isinstance(caught.value, InvalidInput)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InvalidInput, match="No such file"):
        read_nodes(tmp_path / "none.csv")


def test_a_few_lines_of_yaml_cannot_grow_without_end(tmp_path):
    lines = ["a: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"b{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    (tmp_path / "tasks.yaml").write_text(
        "\n".join([*lines, "tasks:", "  - {name: t, cpu: 1, prefer: *a8}"])
    )
    (tmp_path / "nodes.yaml").write_text("nodes:\n  - {name: n, cpu: 1}\n")
    with pytest.raises(InvalidInput):
        read_tasks(tmp_path / "tasks.yaml", read_nodes(tmp_path / "nodes.yaml"))


def test_there_are_only_so_many_nodes(tmp_path, monkeypatch):
    monkeypatch.setattr("gridhand.simulate.inputs.MOST_NODES", 10)
    (tmp_path / "nodes.yaml").write_text("nodes:\n  - {name: n, cpu: 1, count: 11}\n")
    with pytest.raises(InvalidInput, match="count"):
        read_nodes(tmp_path / "nodes.yaml")
