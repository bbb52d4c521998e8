"""A network of the test's own: a controller and two workers, each in a network namespace."""

import os
import shutil
import subprocess

import pytest

CONTROLLER = "10.213.0.1"


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class PrivateNetwork:
    """Namespaces that only a cable between the controller's and each other one connects."""

    def __init__(self, workers=("a", "b")):
        self._mark = f"gh{os.getpid()}"
        self._workers = workers

    def __enter__(self):
        if os.geteuid() != 0:
            pytest.skip("network namespaces need root")
        if shutil.which("ip") is None:
            pytest.skip("network namespaces need `ip`, of the package iproute2")
        try:
            ip("netns", "add", self._space("c"))
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make(self):
        for name in self._workers:
            ip("netns", "add", self._space(name))
        for name in ("c", *self._workers):
            ip("-n", self._space(name), "link", "set", "lo", "up")
        ip("-n", self._space("c"), "addr", "add", f"{CONTROLLER}/32", "dev", "lo")
        for number, name in enumerate(self._workers, 1):
            here, there = f"v{name}", "eth0"
            ip("-n", self._space("c"), "link", "add", here, "type", "veth", "peer", "name", there, "netns", self._space(name))  # fmt: skip
            ip("-n", self._space("c"), "addr", "add", f"10.213.{number}.1/30", "dev", here)
            ip("-n", self._space(name), "addr", "add", f"10.213.{number}.2/30", "dev", there)
            ip("-n", self._space("c"), "link", "set", here, "up")
            ip("-n", self._space(name), "link", "set", there, "up")
            ip("-n", self._space(name), "route", "add", "default", "via", f"10.213.{number}.1")

    def __exit__(self, *_):
        for name in ("c", *self._workers):
            subprocess.run(["ip", "netns", "del", self._space(name)], check=False, capture_output=True)  # fmt: skip

    def _space(self, name):
        return f"{self._mark}{name}"

    def inside(self, name, *command):
        """Return a command that runs in a namespace, as a process that the caller has started."""
        return ["ip", "netns", "exec", self._space(name), *map(str, command)]

    def cut(self, name):
        ip("-n", self._space("c"), "link", "set", f"v{name}", "down")

    def heal(self, name):
        ip("-n", self._space("c"), "link", "set", f"v{name}", "up")
