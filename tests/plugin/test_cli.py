"""`aisbench`: what is not a test."""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import AISBENCH, run
from waiting import PATIENCE

from pytest_aisbench.cli import _parser

KEYS = [
    "cloud_id",
    "modelarts_endpoint",
    "obs_endpoint",
    "iam_endpoint",
    "tester_endpoint",
    "access_key",
    "secret_key",
    "project_id",
    "region",
    "bucket",
    "tester_token",
    "apulis_endpoint",
    "apulis_user",
    "apulis_password",
    "apulis_vc",
    "apulis_storage",
]


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*AISBENCH, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_the_cloud_prints_one_line_and_serves_until_stopped(end: signal.Signals) -> None:
    with started("cloud", "--json") as cloud:
        assert cloud.stdout is not None
        card = json.loads(cloud.stdout.readline())
        assert sorted(card) == sorted(KEYS)
        assert card["obs_endpoint"].startswith("http://127.0.0.1:")
        cloud.send_signal(end)
        rest, _ = cloud.communicate(timeout=PATIENCE)
        assert cloud.returncode == 0
        assert rest == ""


def test_without_json_a_person_can_read_it() -> None:
    with started("cloud") as cloud:
        assert cloud.stdout is not None
        lines = [cloud.stdout.readline() for _ in range(1 + len(KEYS))]
        cloud.terminate()
        cloud.communicate(timeout=PATIENCE)
    assert lines[0] == "The local cloud serves until it is stopped (Ctrl-C).\n"
    assert [line.split()[0] for line in lines[1:]] == KEYS


def test_data_is_kept_and_used_by_one_cloud_at_a_time(tmp_path: Path) -> None:
    cards = []
    for _ in range(2):
        with started("cloud", "--json", "--data", str(tmp_path)) as cloud:
            assert cloud.stdout is not None
            cards.append(json.loads(cloud.stdout.readline()))
            second = run(*AISBENCH, "cloud", "--data", tmp_path)
            assert second.returncode == 4
            assert len(second.stderr.splitlines()) == 1
            cloud.terminate()
            cloud.communicate(timeout=PATIENCE)
    assert cards[0]["secret_key"] == cards[1]["secret_key"]
    assert not any(file.stat().st_mode & 0o077 for file in tmp_path.rglob("*") if "account" in file.name)


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield each
                yield from parsers(each)


def test_every_command_says_what_it_does_and_has_an_example_that_it_takes() -> None:
    whole = _parser("")
    commands = list(parsers(whole))
    assert len(commands) > 20
    for command in commands:
        assert command.description, command.prog
        assert command.description.endswith("."), command.prog
        example = (command.epilog or "").removeprefix("example: ")
        assert example.startswith(command.prog.split(" [")[0]), command.prog
        words = shlex.split(example.partition(" > ")[0])
        assert callable(whole.parse_args(words[1:]).act), example
    helped = run(*AISBENCH, "require", "--help")
    assert "\nexample: aisbench require " in helped.stdout


def test_the_version_and_a_wrong_word() -> None:
    version = run(*AISBENCH, "--version")
    assert version.stdout.startswith("pytest-aisbench ")
    wrong = run(*AISBENCH, "clod")
    assert wrong.returncode == 4
    assert "invalid choice: 'clod'" in wrong.stderr
