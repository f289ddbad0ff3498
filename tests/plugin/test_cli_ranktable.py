"""`aisbench ranktable`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from commands import AISBENCH, run

from pytest_aisbench.cli import main

GOLDEN = Path(__file__).parents[1] / "unit" / "golden" / "ranktable_lab_16.json"
CONF = "".join(f"address_{card}=192.168.{card % 4 + 1}0.{card // 4 + 1}\n" for card in range(8))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return Path(shutil.copy(GOLDEN, tmp_path / "hccl.json"))


def test_the_guides_table_can_be_used(table: Path) -> None:
    done = run(*AISBENCH, "ranktable", "check", table)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{table}: lab, 2 servers, 16 cards: it can be used\n"


def test_a_fault_is_exit_1_and_names_the_entry(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table.write_text(table.read_text(encoding="utf-8").replace("192.168.20.3", "192.168.20.1"), encoding="utf-8")
    assert main(["ranktable", "check", str(table)]) == 1
    text = "server 192.168.3.2, card 1, rank 9: device_ip 192.168.20.1 is that of server 192.168.3.6, card 1, rank 1"
    assert capsys.readouterr().out == f"{table}: {text} too\n"
    assert main(["ranktable", "check", "--json", str(table)]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema"], answer["cards"], answer["errors"]) == ("aisbench-ranktable/1", 16, [f"{text} too"])


def test_the_environments_that_the_guides_script_keeps_show_its_mistake(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def kept(*, repeated: bool) -> list[str]:
        files = []
        for node in range(2):
            for card in range(8):
                file = tmp_path / f"node{node}" / f"train_parallel{card}" / "env.log"
                file.parent.mkdir(parents=True, exist_ok=True)
                rank = card if repeated else 8 * node + card
                file.write_text(f"RANK_SIZE=16\nRANK_ID={rank}\nDEVICE_ID={card}\nTOKEN=hidden\n", encoding="utf-8")
                files.append(str(file))
        return files

    assert main(["ranktable", "check", str(table), "--env", *kept(repeated=True)]) == 1
    output = capsys.readouterr().out
    assert "RANK_ID 0-7 is used repeatedly" in output
    assert "no process is rank 8-15 of 16" in output
    assert "hidden" not in output
    assert main(["ranktable", "check", str(table), "--env", *kept(repeated=False)]) == 0


def test_a_launcher_checks_the_process_it_is(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"RANK_ID": "3", "RANK_SIZE": "16", "DEVICE_ID": "3", "DLWS_ROLE_IDX": "1"}.items():
        monkeypatch.setenv(name, value)
    assert main(["ranktable", "check", str(table), "--env"]) == 1
    assert "this is server 192.168.3.2: its ranks are 8-15" in capsys.readouterr().out
    monkeypatch.setenv("RANK_ID", "11")
    assert main(["ranktable", "check", str(table), "--env"]) == 0


def test_made_of_files_and_addresses_then_converted_and_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf, made, cloud, back = (tmp_path / name for name in ("hccn.conf", "a.json", "b.json", "c.json"))
    conf.write_text(CONF, encoding="utf-8")
    ips = ",".join(f"192.168.{card % 4 + 1}0.{card // 4 + 3}" for card in range(8))
    assert main(["ranktable", "make", f"10.0.0.1={conf}", f"10.0.0.2={ips}", "--output", str(made)]) == 0
    document = json.loads(made.read_text(encoding="utf-8"))
    assert (document["version"], document["server_count"]) == ("1.0", "2")
    assert document["server_list"][1]["device"][7] == {"device_id": "7", "device_ip": "192.168.40.4", "rank_id": "15"}
    assert main(["ranktable", "convert", str(made), "--to", "cloud", "--job", "j", "--output", str(cloud)]) == 0
    assert main(["ranktable", "convert", str(cloud), "--to", "1.0", "--output", str(back)]) == 0
    assert json.loads(back.read_text(encoding="utf-8")) == document
    assert capsys.readouterr() == ("", "")
    assert main(["ranktable", "make", f"10.0.0.1={conf}", "--devices", "0-3", "--format", "lab"]) == 0
    assert json.loads(capsys.readouterr().out)["group_list"][0]["device_num"] == "4"


def test_a_conversion_that_hccl_would_number_otherwise_says_so(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ranktable", "convert", str(table), "--to", "cloud"]) == 0
    assert "note: HCCL, by server_id, would make server 192.168.3.2, card 0 rank 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["check", "none.json"], 4, "none.json: No such file or directory"),
        (["make", "a"], 4, "'a' names no cards"),
        (["make", "a=1.1.1.1", "a=1.1.1.2"], 4, "'a=1.1.1.2' is not one server's cards"),
        (["make", "a=1.1.1.1", "--devices", "x"], 4, "--devices: 'x' is no card"),
        (["make", "a=1.1.1.1", "--devices", "0-3"], 4, "has 1 addresses, and --devices 4 cards"),
        (["make", "a=1.1.1.1", "--output", "x.txt"], 4, "whose name ends in .json"),
        (["make", "a=1.1.1.1", "b=1.1.1.1"], 1, "device_ip 1.1.1.1 is that of server a, card 0, rank 0 too"),
        (["make", "a=none.conf"], 1, "device_ip 'none.conf' is not an IPv4 or IPv6 address"),
    ],
)
def test_what_is_typed_wrong_is_one_line(
    arguments: list[str],
    code: int,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["ranktable", *arguments]) == code
    output = capsys.readouterr()
    assert text in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""
    assert not list(tmp_path.iterdir())
