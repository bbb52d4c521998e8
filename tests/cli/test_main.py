"""How `grid` finds its commands and how it ends."""

from __future__ import annotations

import re
import subprocess
import sys
from types import ModuleType

import click
import pytest

import gridhand
from gridhand.cli.main import ALIASES, COMMANDS, CommandEntry, make_cli, run
from gridhand.cli.support.aliases import MEANT
from gridhand.core.errors import GridError

SAMPLES = "gridhand_cli_samples"


@pytest.fixture
def entries(monkeypatch):
    """Commands in a module of their own, as real ones are."""
    module = ModuleType(SAMPLES)
    monkeypatch.setitem(sys.modules, SAMPLES, module)

    @click.command()
    @click.argument("words", nargs=-1)
    def echo(words):
        click.echo(" ".join(words))

    @click.command()
    @click.argument("code", type=int)
    @click.pass_context
    def leave(ctx, code):
        ctx.exit(code)

    @click.command()
    def refuse():
        raise GridError("node a has no room", hint="Ask for less.")

    @click.command()
    def grumble():
        raise GridError("something is wrong")

    @click.command()
    def crash():
        raise ValueError("a bug")

    @click.command()
    def interrupt():
        raise KeyboardInterrupt

    commands = {c.name: c for c in (echo, leave, refuse, grumble, crash, interrupt)}
    vars(module).update(commands)
    return {name: CommandEntry(f"{SAMPLES}:{name}", f"Help of {name}.") for name in commands}


#    what it shows                            arguments            code  stdout     stderr
CASES = {
    "a command runs":                        (["echo", "a", "b"],  0,    "a b\n",   ""),
    "its exit code is passed on":            (["leave", "7"],      7,    "",        ""),
    "our failures say what to do":           (["refuse"],          125,  "",        "error: node a has no room\nhint: Ask for less.\n"),
    "a failure without a hint is one line":  (["grumble"],         125,  "",        "error: something is wrong\n"),
    "an interrupt is 128 + 2":               (["interrupt"],       130,  "",        "\n"),
    "the nearest command is suggested":      (["ehco"],            125,  "",        "error: there is no command 'ehco'\nhint: Did you mean `grid echo`? `grid --help` lists the commands.\n"),
    "a far one is not":                      (["zzz"],             125,  "",        "error: there is no command 'zzz'\nhint: `grid --help` lists the commands.\n"),
    "wrong usage is a failure of ours":      (["leave", "x"],      125,  "",        "error: Invalid value for 'CODE': 'x' is not a valid integer.\nhint: See `grid leave --help`.\n"),
    "a wrong option too":                    (["--zzz"],           125,  "",        "error: No such option '--zzz'.\nhint: See `grid --help`.\n"),
    "the version":                           (["--version"],       0,    f"grid {gridhand.__version__}\n", ""),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "code", "stdout", "stderr"), CASES.values(), ids=CASES)
def test_grid(entries, capsys, arguments, code, stdout, stderr):
    assert run(make_cli(entries), arguments) == code
    assert capsys.readouterr() == (stdout, stderr)


#    what is typed                            what it does
SAME = {
    ("ps", "-h"):                             ["jobs", "-h"],
    ("nodes", "--help"):                      ["list", "--help"],
    ("kill", "--help"):                       ["cancel", "--help"],
    ("submit", "--help"):                     ["run", "--help"],
}  # fmt: skip


@pytest.mark.parametrize(("typed", "same"), SAME.items(), ids=" ".join)
def test_what_others_call_it_is_understood(capsys, typed, same):
    texts = []
    for words in (list(typed), same):
        assert run(make_cli(COMMANDS), words) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


def test_aliases_do_not_fill_the_help(capsys):
    assert run(make_cli(COMMANDS), ["--help"]) == 0
    out = capsys.readouterr().out
    rows = [line.split()[0] for line in out.partition("Options:")[0].splitlines() if "  " in line]
    assert [row for row in rows if row in {**COMMANDS, **ALIASES}] == list(COMMANDS)
    last = " ".join(out[out.index("Aliases:") :].split())  # and yet they are told
    for alias, words in ALIASES.items():
        assert alias in last
        assert " ".join(words) in last


@pytest.mark.parametrize("word", sorted(MEANT))
def test_who_comes_from_elsewhere_is_told_what_to_type(capsys, word):
    assert run(make_cli(COMMANDS), [word, "17"]) == 125
    hint = capsys.readouterr().err.splitlines()[1]
    assert hint.startswith(f"hint: Did you mean `{MEANT[word]}`? ")
    assert word not in {**COMMANDS, **ALIASES}
    cli = make_cli(COMMANDS)
    for line in MEANT[word].split("` or `"):
        with click.Context(cli) as ctx:
            assert line == "grid --version" or cli.get_command(ctx, line.split()[1])


def test_a_slip_of_an_alias_is_understood_too(capsys):
    assert run(make_cli(COMMANDS), ["sumbit"]) == 125
    assert "Did you mean `grid submit`?" in capsys.readouterr().err


def test_a_bug_is_shown_in_full(entries, capsys):
    assert run(make_cli(entries), ["crash"]) == 125
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "ValueError: a bug" in shown


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_help_lists_commands_without_importing_them(capsys, arguments):
    entries = {"far": CommandEntry("no.such.module:far", "Goes far.")}
    assert run(make_cli(entries), arguments) == 0
    out, err = capsys.readouterr()
    assert "Goes far." in out
    assert err == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_80_columns_and_lists_every_option(monkeypatch, capsys, name):
    monkeypatch.setenv("COLUMNS", "80")
    cli = make_cli(COMMANDS)
    assert run(cli, [name, "--help"]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if len(line) > 80] == []
    with click.Context(cli) as ctx:
        params = cli.get_command(ctx, name).params
    for option in (one for one in params if isinstance(one, click.Option) and not one.hidden):
        assert option.opts[-1] in out


def test_help_groups_the_options_of_run_and_ends_with_examples(capsys):
    assert run(make_cli(COMMANDS), ["run", "--help"]) == 0
    out = capsys.readouterr().out
    headings = re.findall(r"^(\w[\w ]+):$", out, re.MULTILINE)
    assert headings == [
        "Resources", "Placement", "Queueing", "Limits and retries", "Input and output", "Options",
        "Examples",
    ]  # fmt: skip


def test_the_shell_completes_commands(entries, monkeypatch, capsys):
    monkeypatch.setenv("_GRID_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "grid e")
    monkeypatch.setenv("COMP_CWORD", "1")
    with pytest.raises(SystemExit):
        run(make_cli(entries), [])
    assert capsys.readouterr().out == "plain,echo\n"


def test_the_shell_completes_nothing_after_an_unknown_word(entries, monkeypatch, capsys):
    monkeypatch.setenv("_GRID_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "grid zzz e")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        run(make_cli(entries), [])
    assert "error" not in capsys.readouterr().out


def test_the_real_commands_are_where_the_map_says_and_say_the_same():
    cli = make_cli(COMMANDS)
    with click.Context(cli, info_name="grid") as ctx:
        for name, entry in COMMANDS.items():
            command = cli.get_command(ctx, name)
            assert command is not None
            assert command.name == name
            assert command.get_short_help_str(limit=100) == entry.help


def test_the_console_script_starts():
    code = "import sys; from gridhand.cli.main import main; sys.argv[1:] = ['zzz']; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 125
    assert done.stderr.startswith("error: there is no command 'zzz'\n")
