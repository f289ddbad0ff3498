"""The files of ais-bench-stubs: a shell reads config.sh as we do, and a child process executes a trusted file."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from old_package import BERT, BERT_CONFIG

from pytest_aisbench.config.legacy import shell_file
from pytest_aisbench.config.legacy.modelarts_config import read
from pytest_aisbench.errors import UsageFault

names = st.sampled_from(["A", "BASE", "x_1"])
plain = st.text(alphabet="ab $'\"\\#;&|=-/é", max_size=8)


def written(folder: Path, text: str) -> Path:
    path = folder / "config"
    path.write_text(text, encoding="utf-8")
    return path


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(names, plain, st.sampled_from(["'", '"', "bare"])), min_size=1, max_size=4))
def test_what_is_read_is_what_a_shell_would_set(tmp_path: Path, rows: list[tuple[str, str, str]]) -> None:
    lines = []
    for name, value, quote in rows:
        if quote == "'":
            body = "'" + value.replace("'", "") + "'"
        elif quote == '"':
            body = '"' + value.replace('"', "").replace("\\", "").replace("$", "") + '"'
        else:
            body = "".join(letter for letter in value if letter in "ab-/é")
        lines.append(f"export {name}={body}")
    path = written(tmp_path, "\n".join(lines) + "\n")
    exported = shell_file.read(path)
    script = f". {path}; " + "; ".join(f'printf "%s\\0" "${name}"' for name in sorted(exported.values))
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"})
    assert done.stdout.decode().split("\0")[:-1] == [exported.text(name) for name in sorted(exported.values)]


def test_a_trusted_file_is_executed_in_a_child_and_says_so(tmp_path: Path) -> None:
    text = BERT_CONFIG + f"\nimport os\nopen({str(tmp_path / 'who')!r}, 'w').write(str(os.getpid()))\nprint('noise')\n"
    text += "access_config.region_name = os.path.basename('/x/computed')\n"
    path = written(tmp_path, text)
    with pytest.raises(UsageFault, match="trust-config"):
        read(path).access("V2")
    assert not (tmp_path / "who").exists()
    file = read(path, trusted=True)
    access, _ = file.access("V2")
    assert (file.executed, access.region_name, access.secret_access_key.reveal()) == (
        True,
        "computed",
        "legacy-secret-key",
    )
    assert int((tmp_path / "who").read_text()) != os.getpid()
    assert file.session("V2").parameters("V2") == BERT


@pytest.mark.parametrize(
    ("last", "message"),
    [("sys.exit(0)", "ended before its last line"), ("os.write(2, b'\\xff'); 1 / 0", "exit code 1: ZeroDivisionError")],
)
def test_a_trusted_file_that_says_nothing_or_no_text_is_one_line(tmp_path: Path, last: str, message: str) -> None:
    with pytest.raises(UsageFault, match=message):
        read(written(tmp_path, f"import os, sys\n{last}\n"), trusted=True)


def test_a_trusted_file_that_fails_is_one_line_without_its_secrets(tmp_path: Path) -> None:
    path = written(
        tmp_path, "access_config = make('TOPSECRET')\ndef make(key):\n    raise ValueError(key)\nmake('TOPSECRET')"
    )
    with pytest.raises(UsageFault, match=r"executed, and ended with exit code 1: NameError") as caught:
        read(path, trusted=True)
    assert "TOPSECRET" not in str(caught.value)
