"""Controls that are a property of the whole source, and not of one behaviour."""

import ast
import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest

import gridhand

SOURCE = Path(gridhand.__file__).parent
ROOT = Path(__file__).parent.parent
FILES = {str(path.relative_to(SOURCE)): path for path in sorted(SOURCE.rglob("*.py"))}
# They run functions of the user's own, in processes of the user's own.
UNPICKLE = ("library/", "worker/", "simulate/")
SERVERS = ("api/", "controller/", "store/", "agent/", "engines/", "core/", "audit/", "config/")

# Names by which code or objects could come out of data, and a shell out of text.
DANGEROUS = {
    "pickle.load", "pickle.loads", "pickle.Unpickler", "cloudpickle.load", "cloudpickle.loads", "marshal.load",
    "marshal.loads", "shelve.open", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "eval", "exec", "os.system",
    "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput",
}  # fmt: skip
# Modules that connect to where a caller says.
CONNECTING = {"urllib.request", "http.client", "requests", "httpx", "aiohttp", "urllib3", "ftplib", "smtplib"}  # fmt: skip


def calls(text):
    """The names that are called, and the keyword arguments, as they are written."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def dangers(text):
    found = [name for name, _ in calls(text) if name in DANGEROUS]
    for name, call in calls(text):
        found += [
            f"{name}(shell=True)"
            for given in call.keywords
            if given.arg == "shell" and ast.unparse(given.value) != "False"
        ]
    return found


@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith(UNPICKLE)])
def test_data_never_becomes_code(name):
    allowed = ["yaml.load"] if name == "config/yaml_file.py" else []  # with a loader of its own
    assert dangers(FILES[name].read_text()) == allowed


def test_the_loader_of_the_configuration_is_a_safe_one():
    import yaml

    from gridhand.config.yaml_file import _Loader

    assert issubclass(_Loader, yaml.SafeLoader)


SAMPLES = {
    "pickle.loads(x)": 1, "yaml.safe_load(x)": 0, "yaml.load(x)": 1, "json.loads(x)": 0, "eval('1')": 1,
    "run(x, shell=True)": 1, "run(x, shell=False)": 0, "run(x, shell=y)": 1,
}  # fmt: skip


@pytest.mark.parametrize("text", SAMPLES)
def test_the_look_for_dangers(text):
    assert len(dangers(text)) == SAMPLES[text]


def imported(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith(SERVERS)])
def test_no_server_connects_to_where_a_caller_says(name):
    """There are no webhooks and no addresses to fetch from (SSRF)."""
    assert CONNECTING & set(imported(FILES[name].read_text())) == set()


SQL = re.compile(r"\b(select|insert|update|delete|create|alter|drop|pragma|set|lock|begin)\b", re.I)


def made_sql(text):
    """Texts of SQL into which something is put, each with what that is."""
    for name, call in calls(text):
        if name.rpartition(".")[2] in ("text", "execute", "exec_driver_sql", "executemany"):
            for given in call.args[:1]:
                if isinstance(given, ast.JoinedStr) and SQL.search(ast.unparse(given)):
                    yield from (
                        ast.unparse(part.value)
                        for part in given.values
                        if isinstance(part, ast.FormattedValue)
                    )
                elif isinstance(given, ast.BinOp) or ".format" in ast.unparse(given):
                    yield ast.unparse(given)


# Parts of statements that are constants of ours: names of tables cannot be bound.
CONSTANTS = {
    "store/sql/postgres.py: SCHEMA",
    "store/sql/postgres.py: 'SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE' + _HOLDS_IT",
    "store/sql/postgres.py: 'SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE' + _HOLDS_IT",
    "store/sql/sqlite.py: pragma",
    "store/sql/migrations/v2.py: table",
    "store/sql/migrations/v2.py: kept",
}


def test_values_in_sql_are_bound():
    found = {
        f"{name}: {what}"
        for name, path in FILES.items()
        if name.startswith("store/")
        for what in made_sql(path.read_text())
    }
    assert found == CONSTANTS


def test_only_the_store_speaks_sql():
    speaking = {
        name
        for name, path in FILES.items()
        if {"sqlalchemy", "sqlite3", "psycopg"}
        & {one.split(".")[0] for one in imported(path.read_text())}
    }
    doctor = "cli/support/machine_checks.py"  # asks for the version alone
    assert {name for name in speaking if not name.startswith("store/")} == {doctor}


def test_no_field_of_the_api_is_an_address_to_connect_to():
    words = re.compile("url|uri|webhook|callback|endpoint|proxy|redirect", re.I)
    fields = set()
    for name, path in FILES.items():
        if name.startswith(("api/schemas/", "api/routes/")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    fields.add(node.target.id)
    assert len(fields) > 100
    assert {field for field in fields if words.search(field)} == set()


def test_every_dependency_has_an_exact_version():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [line for line in lines if line and not line.startswith("#")]
    assert [line for line in pinned if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    names = {line.partition("==")[0].lower().replace("_", "-") for line in pinned}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    asked = {re.split(r"[\[<>=!~ ]", one)[0].lower().replace("_", "-") for one in wanted}
    assert asked - {"gridhand"} <= names
