"""Load, network and disks of a made-up machine: rates, and what cannot be read."""

import pytest

from gridhand.agent.hardware.host_readings import HostReadings

HEAD = "Inter-|   Receive  |  Transmit\n face |bytes packets\n"


class FakeHost:
    """Files of /proc and /sys that a test writes, and a clock that it sets."""

    def __init__(self, root):
        self.root, self.now = root, 0.0
        self.readings = HostReadings(root, root=root, clock=lambda: self.now)
        (root / "proc/net").mkdir(parents=True)
        self.write("proc/loadavg", "0.50 0.25 0.10 1/100 4711\n")
        self.network(eth0=(0, 0))
        self.disks(sda=(0, 0))
        self.real("net", "eth0")
        self.real("disk", "sda")

    def write(self, path, text):
        (self.root / path).write_text(text)

    def real(self, kind, name):
        folder = "sys/class/net" if kind == "net" else "sys/block"
        (self.root / folder / name / "device").mkdir(parents=True)

    def network(self, **cards):
        lines = [f" {n}: {r} 1 0 0 0 0 0 0 {s} 1 0 0 0 0 0 0\n" for n, (r, s) in cards.items()]
        self.write("proc/net/dev", HEAD + "".join(lines))

    def disks(self, **disks):
        lines = [f" 8 0 {n} 1 0 {r} 0 1 0 {w} 0 0 0 0\n" for n, (r, w) in disks.items()]
        self.write("proc/diskstats", "".join(lines))


@pytest.fixture
def host(tmp_path):
    return FakeHost(tmp_path)


def test_rates_are_those_since_the_reading_before(host):
    first = host.readings.read()
    assert first["load"] == [0.5, 0.25, 0.1]
    assert 0 < first["disk_bytes"] <= first["disk_total_bytes"]
    host.now = 2.0
    host.network(eth0=(1000, 500), lo=(7, 7), docker0=(1000, 500))  # the bridge has the same again
    host.disks(sda=(20, 10), sda1=(20, 10), loop0=(9, 9))
    found = host.readings.read()
    assert (found["network_received_per_s"], found["network_sent_per_s"]) == (500, 250)
    assert (found["disk_read_per_s"], found["disk_written_per_s"]) == (5120, 2560)
    host.now = 3.0
    host.network(eth0=(10, 5))  # another card, or a counter that began anew
    assert "network_received_per_s" not in host.readings.read()
    assert host.readings.problems == ()


def test_where_no_card_is_real_all_but_the_loopback_count(host):
    host.network(veth1=(10, 10), lo=(10**9, 10**9))
    host.readings.read()
    host.now = 1.0
    host.network(veth1=(30, 10), lo=(2 * 10**9, 10**9))
    assert host.readings.read()["network_received_per_s"] == 20


def test_what_cannot_be_read_is_told_and_the_rest_goes_on(host):
    host.write("proc/loadavg", "nonsense")
    (host.root / "proc/diskstats").unlink()
    found = host.readings.read()
    assert "load" not in found
    assert "disk_bytes" in found
    told = [problem.what for problem in host.readings.problems]
    assert len(told) == 2
    assert told[0].startswith("the load of this machine cannot be read")
    assert told[1].startswith("the disk traffic of this machine cannot be read")
    host.write("proc/loadavg", "1 1 1")
    host.disks()
    host.readings.read()
    assert host.readings.problems == ()
