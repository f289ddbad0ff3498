"""The files of ais-bench-stubs: we read all that its guides print, execute nothing, and show no key."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from old_package import BERT, BERT_CONFIG

from pytest_aisbench.config.legacy import python_file, shell_file
from pytest_aisbench.config.legacy.modelarts_config import Config, read
from pytest_aisbench.config.legacy.python_file import Unreadable
from pytest_aisbench.errors import UsageFault

QUICK = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def written(tmp_path: Path) -> Any:
    def write(text: str | bytes, name: str = "modelarts_config.py") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", errors="surrogatepass"))
        return path

    return write


def config(path: Path) -> Config:
    return read(path)


def test_both_sessions_of_the_guide(written: Any) -> None:
    file = config(written(BERT_CONFIG))
    assert file.session("V1").parameters("V1") == BERT
    assert file.session("V2").parameters("V2") == BERT
    assert file.session("V1").text("framework_version").startswith("MindSpore-1.3")
    assert file.session("V2").count("train_instance_count", 9) == 1
    assert file.session("V2").text("pool_id") == ""
    access, notes = file.access("V1")
    assert (access.region_name, access.bucket, notes) == ("cn-north-4", "zgwtest", [])


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("'a' 'b'", "ab"),
        ("BASE + '/x'", "/b/x"),
        ("f'{BASE}/{COUNT}'", "/b/2"),
        ("'{}/{}'.format(BASE, 1)", "/b/1"),
        ("'{name}-{{'.format(name='n')", "n-{"),
        ("'%s/%d%%' % (BASE, COUNT)", "/b/2%"),
        ("-3", -3),
        ("COUNT + 1", 3),
        ("[1] + [2]", [1, 2]),
        ("other.x", "y"),
        ("other['x']", "y"),
        ("{**other, 'z': 1}", {"x": "y", "z": 1}),
        ("dict(a='b')", {"a": "b"}),
        ("easydict.EasyDict({'a': None})", {"a": None}),
    ],
)
def test_literals_and_what_is_made_of_them(written: Any, source: str, value: object) -> None:
    text = f"import easydict\nBASE = '/b'\nCOUNT = 2\nclass other:\n    x = 'y'\nwanted = {source}\n"
    assert python_file.read(written(text))["wanted"] == value


@pytest.mark.parametrize(
    "source",
    [
        "os.environ['AK']",
        "open('/etc/passwd').read()",
        "'x' * 10**9",
        "'{0.__class__}'.format('x')",
        "'{:>99999999}'.format('x')",
        "'%99999999s' % 'x'",
        "f'{1:>99999999}'",
        "[x for x in 'ab']",
        "(lambda: 1)()",
        "unknown",
        "b'bytes'",
        "9" * 40,
    ],
)
def test_what_needs_an_interpreter_is_told_with_its_line(written: Any, source: str) -> None:
    path = written(f"import os\naccess_config = {{\n  'region_name': {source},\n}}\n")
    assert isinstance(python_file.read(path)["access_config"]["region_name"], Unreadable)
    with pytest.raises(UsageFault, match=r"modelarts_config.py:3: access_config.region_name") as caught:
        config(path).access("V2")
    assert "--aisbench-trust-config" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "statement",
    [
        "access_config.update({'region_name': 'b'})",
        "if True:\n    access_config['region_name'] = 'b'",
        "for key in ['region_name']:\n    access_config[key] = 'b'",
        "x = change(access_config)",
        "access_config[name()] = 'b'",
        "del access_config['region_name']",
        "x = print(access_config := {'region_name': 'b'})",
        "with open('x') as access_config:\n    pass",
        "a, access_config = 1, {'region_name': 'b'}",
    ],
)
def test_what_may_have_been_changed_is_not_believed(written: Any, statement: str) -> None:
    path = written(f"access_config = {{'region_name': 'a'}}\n{statement}\n")
    with pytest.raises(UsageFault, match="access_config"):
        config(path).access("V2")


@pytest.mark.parametrize(
    "statement",
    [
        "access_config['region_name'] = 'b'",
        "access_config.region_name = 'b'",
        "alias = access_config\nalias['region_name'] = 'b'",
        "print(access_config)\naccess_config['region_name'] = 'b'",
        "access_config['region_name'] = 'b'\nif __name__ == '__main__':\n    access_config.clear()",
    ],
)
def test_assignments_to_a_key_are_followed(written: Any, statement: str) -> None:
    path = written(f"access_config = {{'region_name': 'a'}}\n{statement}\n")
    assert config(path).access("V2")[0].region_name == "b"


def test_a_line_that_doubles_a_text_does_not_eat_the_memory(written: Any) -> None:
    path = written("x = 'aa'\n" + "x = x + x\n" * 200)
    assert isinstance(python_file.read(path)["x"], Unreadable)


@pytest.mark.parametrize(
    "source", [b"\xff\xfe", b"x = (", b"x = 1\0", b"x = " + b"(" * 5000 + b")" * 5000, "名 = '训练'".encode("gbk")]
)
def test_what_is_no_python_is_one_line(written: Any, source: bytes) -> None:
    with pytest.raises(UsageFault, match=r"modelarts_config.py"):
        python_file.read(written(source))


def test_no_message_quotes_a_key(written: Any) -> None:
    for value in ("decrypt('TOPSECRET')", "['TOPSECRET']", "'TOPSECRET' * 2"):
        path = written(f"access_config = {{'access_key': {value}, 'secret_access_key': 'TOPSECRET'}}\n")
        file = config(path)
        with pytest.raises(UsageFault, match=r"access_config.access_key") as caught:
            file.access("V2")
        assert "TOPSECRET" not in f"{caught.value} {file!r} {file.names!r}"


def test_a_trusted_file_that_can_be_parsed_is_not_executed(written: Any, tmp_path: Path) -> None:
    path = written(BERT_CONFIG + f"\nopen({str(tmp_path / 'who')!r}, 'w')\n")
    assert not read(path, trusted=True).executed
    assert not (tmp_path / "who").exists()


SHELL = """#!/bin/bash
# a comment
export PYTHON_COMMAND=python3.7   # of this machine
export SINGLESERVER_MODE="True"
MODELARTS_VERSION='V2'
export RANK_SIZE=8 DEVICE_NUM=8; export BASE=/opt
export RANK_TABLE_FILE=${BASE}/rank"_table".json
export EMPTY=
export LONG=a\\
b
export HASH=a#b
export NOW=$(touch @marker)
export THEN=`touch @marker`
export THERE=$HOME_OF_NOBODY/x
touch @marker
[ -f /etc/passwd ] && export MAYBE=1
if true; then
    export INSIDE=1
fi
export AFTER=1
A=1 touch @marker
unset EMPTY
"""


def test_a_shell_file_of_the_guide(written: Any, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    variables = shell_file.read(written(SHELL.replace("@marker", str(marker)), "config.sh"))
    assert {name: variables.text(name) for name, value in variables.values.items() if isinstance(value, str)} == {
        "PYTHON_COMMAND": "python3.7",
        "SINGLESERVER_MODE": "True",
        "MODELARTS_VERSION": "V2",
        "RANK_SIZE": "8",
        "DEVICE_NUM": "8",
        "BASE": "/opt",
        "RANK_TABLE_FILE": "/opt/rank_table.json",
        "LONG": "ab",
        "HASH": "a#b",
        "AFTER": "1",
    }
    assert variables.location("MODELARTS_VERSION").endswith("config.sh:5")
    for name in ("NOW", "THEN", "THERE", "MAYBE", "INSIDE"):
        with pytest.raises(UsageFault, match=rf"config.sh:\d+: {name} cannot be told") as caught:
            variables.text(name)
        assert "\n" not in str(caught.value)
    assert not marker.exists()


def test_a_wrong_word_names_its_line(written: Any) -> None:
    variables = shell_file.read(written("\nexport SINGLESERVER_MODE=yes\n", "config.sh"))
    with pytest.raises(UsageFault, match=r"config.sh:2: SINGLESERVER_MODE is neither True nor False"):
        variables.choice("SINGLESERVER_MODE", "True", "False", default="False")


def test_a_quote_without_end_names_its_line(written: Any) -> None:
    with pytest.raises(UsageFault, match=r"config.sh:2: the quote \" is never closed"):
        shell_file.read(written('A=1\nB="x\n', "config.sh"))


def test_a_file_that_is_not_there_sets_nothing(tmp_path: Path) -> None:
    assert shell_file.read(tmp_path / "config.sh").values == {}


words = st.sampled_from(["A", "B", "export ", "=", "'", '"', "$", "${", "}", "`", "$(", ")", "\\", "\n", " ", ";", "#",
                         "&&", "|", "(", "{", "if ", "fi", "<<", "x", "é", "\0", "1"])  # fmt: skip


@QUICK
@given(st.one_of(st.lists(words, max_size=30).map("".join), st.text(max_size=60)))
def test_any_shell_file_is_read_or_refused(written: Any, text: str) -> None:
    try:
        variables = shell_file.read(written(text, "config.sh"))
    except UsageFault:
        return
    for name in variables.values:
        try:
            variables.text(name)
        except UsageFault:
            continue


values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.text(max_size=8),
        st.sampled_from(["plant()", "x", "os.system('x')"]),
    ).map(repr),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]"),
        st.dictionaries(st.text(max_size=5).map(repr), inner, max_size=3).map(
            lambda rows: "{" + ", ".join(f"{key}: {value}" for key, value in rows.items()) + "}"
        ),
        st.tuples(inner, st.sampled_from(["+", "%", "*", "-", "."]), inner).map(" ".join),
        st.tuples(st.sampled_from(["ed", "dict", "plant", "print", "f", "'{}'.format"]), inner).map(
            lambda call: f"{call[0]}({call[1]})"
        ),
    ),
    max_leaves=8,
)
statements = st.one_of(
    st.tuples(st.sampled_from(["access_config", "session_config", "session_config_v2", "x"]), values).map(
        lambda pair: f"{pair[0]} = {pair[1]}"
    ),
    values,
    st.sampled_from(["plant()", "if plant():\n    x = 1", "class access_config:\n    a = plant()", "import os"]),
    st.text(max_size=20),
)


@QUICK
@given(st.lists(statements, max_size=6))
@pytest.mark.slow
def test_any_python_file_is_read_or_refused_and_never_run(written: Any, lines: list[str]) -> None:
    # Were anything of it run, the function would be called, and the folder be there.
    folder = Path(str(written("", "probe"))).parent / "planted"
    head = f"from easydict import EasyDict as ed\nimport os\ndef plant():\n    os.mkdir({str(folder)!r})\nplant()\n"
    path = written(head + "\n".join(lines) + "\n")
    with contextlib.suppress(UsageFault):
        file = config(path)
        for version in ("V1", "V2"):
            for ask in (file.access, file.unused_keys, lambda v: file.session(v).parameters(v)):
                with contextlib.suppress(UsageFault):
                    ask(version)
    assert not folder.exists()
