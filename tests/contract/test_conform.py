"""`aisbench cloud conform`, the operations of the SDKs that it counts by, and the score in docs/local-cloud.md."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import sdk_operations
from commands import AISBENCH, run

from pytest_aisbench import cli
from pytest_aisbench.localcloud import conform, iam
from pytest_aisbench.localcloud import vendor_operations as vendor
from pytest_aisbench.localcloud.conform import Outcome, Probe, operations
from pytest_aisbench.localcloud.messages import Request, Response
from pytest_aisbench.localcloud.obs.service import Obs

PAGE = Path(__file__).parents[2] / "docs" / "local-cloud.md"
BEGIN, END = "<!-- conform: begin -->\n", "\n<!-- conform: end -->"


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return list(conform.run())


def faults(*names: str) -> dict[str, str]:
    """What the probes of these names find wrong."""
    wanted = [probe for probe in conform.probes() if probe.name in names]
    return {probe.name: fault for probe, fault in conform.run(wanted) if fault}


def test_every_probe_holds(outcomes: list[Outcome]) -> None:
    assert [(probe.api, probe.name, fault) for probe, fault in outcomes if fault] == []


def test_every_operation_of_the_sdks_is_probed_once(outcomes: list[Outcome]) -> None:
    for api, sdk in vendor.sdks().items():
        source = f"{sdk.name} {sdk.version}"
        probed = [probe.name for probe, _ in outcomes if probe.api == api and probe.source == source]
        assert sorted(probed) == sorted(sdk.operations)


def test_the_score_stands_in_the_docs(outcomes: list[Outcome]) -> None:
    """Whoever changes what is served puts the new score there: `aisbench cloud conform` prints it."""
    assert PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0] == conform.table(
        conform.scores(outcomes)
    )


@pytest.mark.filterwarnings(r"ignore:The _compute_attributes method is deprecated")
@pytest.mark.parametrize("api", vendor.APIS)
def test_the_operations_are_those_of_the_sdk(
    api: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Where another release is installed, what we serve must still be there as we serve it."""
    sdk = vendor.sdks()[api]
    try:
        installed = version(sdk.name)
    except PackageNotFoundError:
        pytest.skip(f"{sdk.name} comes with the extra [test]")
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))  # imports of the vendor's write there
    found = sdk_operations.read_api(api)
    kept = json.loads(sdk_operations.FILE.read_text(encoding="utf-8"))[api]
    if installed == sdk.version:
        assert found == kept, "python tests/support/sdk_operations.py makes the file"
    served = operations.SERVED[api]
    assert {name: found["operations"][name][:2] for name in served} == {
        name: kept["operations"][name][:2] for name in served
    }


def test_the_closest_operation_gives_its_name() -> None:
    v1 = [vendor.MODELARTS_V1]
    assert vendor.names(v1, "GET", "/v1/p/dev-servers/jobs/templates") == "list_dev_server_job_templates"
    assert vendor.names(v1, "GET", "/v1/p/dev-servers/jobs/x") == "get_dev_server_job"
    assert vendor.names([vendor.OBS], "POST", "/b/a/key", {"append", "position"}) == "appendObject"
    assert vendor.names(v1, "GET", "/v1/p/nothing") == ""


class TestProbesFail:
    """One test for each way in which a cloud is not the vendor's."""

    def test_a_wrong_200(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(iam, "_unserved", lambda _: Response.json(200, {}))
        monkeypatch.setattr(iam.Iam, "_projects", lambda *_: Response.json(200, {}))
        wrong = faults("keystone_list_users", "keystone_list_projects")
        assert wrong["keystone_list_users"].startswith("501 was expected, not 200")
        assert "local-1" in wrong["keystone_list_projects"]

    def test_a_501_that_names_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(vendor, "names", lambda *_: "something")
        assert set(faults("list_notebooks", "setBucketPolicy")) == {"list_notebooks", "setBucketPolicy"}

    def test_an_operation_that_is_served_without_a_probe(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(operations.V2, "show_training_quotas")
        assert faults("show_training_quotas")["show_training_quotas"].startswith("501 was expected, not 200")

    def test_a_field_that_the_sdk_does_not_know(self, monkeypatch: pytest.MonkeyPatch) -> None:
        known = vendor.sdks()[vendor.MODELARTS_V2].operations
        monkeypatch.setitem(
            known, "show_training_quotas", known["show_training_quotas"]._replace(fields=frozenset("x"))
        )
        assert "does not have quotas" in faults("show_training_quotas")["show_training_quotas"]

    def test_another_code(self, monkeypatch: pytest.MonkeyPatch) -> None:
        answer = Obs.answer

        def altered(self: Obs, request: Request) -> Response:
            response = answer(self, request)
            body = response.body.replace(b"NoSuchKey", b"NoKey") if isinstance(response.body, bytes) else response.body
            return response._replace(body=body)

        monkeypatch.setattr(Obs, "answer", altered)
        assert "404 NoSuchKey was expected" in faults("404 NoSuchKey")["404 NoSuchKey"]


def test_the_command_as_json() -> None:
    done = run(*AISBENCH, "cloud", "conform", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    content = json.loads(done.stdout)
    assert [score["api"] for score in content["scores"]] == [*vendor.APIS, "Apulis"]
    assert {probe["kind"] for probe in content["probes"]} == {"operation", "error", "injected error", "rule"}
    assert all(probe["source"] for probe in content["probes"])


def test_a_probe_that_fails_is_exit_1_and_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: object) -> str:
        raise KeyError("items")

    probes = [
        Probe(vendor.IAM, "rule", "A rule", conform.OURS, lambda _: ""),
        Probe(vendor.IAM, "rule", "Another", conform.DOCUMENT, broken),
    ]
    monkeypatch.setattr(conform, "probes", lambda: probes)
    assert cli.main(["cloud", "conform"]) == 1
    line, *table = capsys.readouterr().out.splitlines()
    assert line == "IAM, rule Another (vendor's document): FAILED: KeyError: 'items'"
    assert table[-2].endswith("| 1 of 2 |")
