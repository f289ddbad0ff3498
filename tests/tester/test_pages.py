"""The pages as they are sent, on both databases."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import strict_html
from open_tester import Serving, bound, case, fill, history, serving

from pytest_aisbench.model.job import TrainedWith
from pytest_aisbench.model.results import Executor, RunEnd
from pytest_aisbench.tester.payload import end_upload, result_upload

pytestmark = pytest.mark.slow

RUNS = 56  # more than a page of them
LAST = f"run-{RUNS - 1:05d}"
PAGES = (
    "/p/centre",
    "/p/centre/cases",
    "/p/centre/cases/modelarts/bert-8x8",
    "/p/centre/scaling",
    "/p/centre/stragglers",
    "/p/centre/audit",
    "/p/centre/search?q=bert",
    f"/p/centre/compare?a=run-00000/run-00000&b={LAST}/{LAST}",
    f"/p/centre/t/{LAST}/r/{LAST}",
    f"/p/centre/t/{LAST}/r/{LAST}/c/bert-8x8",
)


COMMIT = "1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d"
NIGHTLY = Executor("Jenkins", "nightly #12", "https://ci.example/12/", 12, COMMIT, "main")
BUILT = replace(bound(), origin=NIGHTLY)
ENDED = RunEnd("run-1", 1.0, 2.0, 0, {}, 0.0)
MINIATURE = TrainedWith("numpy", "2.1.0", source="log", miniature=True, instead_of="torch")
TRAINED = replace(case(), trials=tuple(replace(trial, trained_with=MINIATURE) for trial in case().trials))


@pytest.fixture(scope="module")
def centre(new_database: Callable[[], str]) -> Iterator[Serving]:
    db = new_database()
    fill(db, "centre", history(RUNS))
    fill(db, "builds", [result_upload(BUILT, "run-1", TRAINED, 1), end_upload(BUILT, ENDED, 1)])
    with serving(db) as running:
        yield running


def test_every_page_is_there_and_lets_a_browser_do_nothing_more_than_needed(centre: Serving) -> None:
    for path in PAGES:
        page = centre.get(path)
        assert page.status == 200, path
        policy = page.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert not re.search(r"<[^>]+\s(style|on\w+)=|<script>|https?://(?!127)", page.text), path
        assert page.headers["cache-control"] == "no-store"
        assert strict_html.errors(page.text) == [], path
    for path in ("/p/nobody", "/p/centre/t/x/r/y", "/p/centre/cases/x/y", "/nothing", "/p/centre/compare?a=x/y&b=z/z"):
        assert "no such page" in centre.get(path).text or path == "/p/nobody"
    for path in ("/p/centre/search?q=%00", "/p/centre/cases/x/%00", "/api/v1/tests/%00/results"):
        assert centre.get(path).status == 400
    for path in ("?before=nan_1", f"?before=1_{2**64}", "?platform=%FF", "/audit?before=99999999999999999999"):
        assert centre.get(f"/p/centre{path}").status == 200


@pytest.mark.parametrize(
    ("asked", "headers", "said"),
    [
        ("", {}, "Runs"),
        ("", {"Accept_Language": "zh-CN,zh;q=0.9,en;q=0.8"}, "运行"),
        ("", {"Accept_Language": "fr,en;q=0.5,zh;q=0.2"}, "Runs"),
        ("?lang=zh", {}, "运行"),
        ("?lang=en", {"Accept_Language": "zh"}, "Runs"),
        ("", {"Cookie": "aisbench_language=zh"}, "运行"),
        ("?lang=<b>", {"Accept_Language": ";;q=x,,"}, "Runs"),
    ],
)
def test_the_language_is_the_readers(centre: Serving, asked: str, headers: dict[str, Any], said: str) -> None:
    assert f"<h1>{said}</h1>" in centre.get(f"/p/centre{asked}", **headers).text


def test_a_stranger_who_has_a_browser_call_us_by_another_name_is_turned_away(centre: Serving) -> None:
    assert centre.get("/p/centre", Host="evil.example").status == 421
    assert centre.get("/p/centre", Host="localhost:1").status == 200
    assert centre.get("/p/centre", X_Forwarded_For="10.0.0.1").status == 401  # it came by a proxy


def test_pages_follow_each_other_without_a_gap_and_exports_have_all_of_it(centre: Serving) -> None:
    def named(text: str) -> list[str]:
        return re.findall(r'href="/p/centre/t/[^"]+">(run-\d+)</a>', text)

    first = centre.get("/p/centre").text
    older = re.search(r'rel="next" href="([^"]+)"', first)
    assert older
    second = centre.get(older[1].replace("&amp;", "&")).text
    seen = named(first) + named(second)
    assert seen == [f"run-{number:05d}" for number in reversed(range(RUNS))]
    rows = list(csv.DictReader(io.StringIO(centre.get("/p/centre?format=csv").text)))
    assert [row["name"] for row in rows] == seen
    assert len(centre.get("/p/centre/results?format=json").json["rows"]) == RUNS * 8
    trend = centre.get("/p/centre/cases/modelarts/bert-8x8?format=json").json["rows"]
    assert len(trend) == RUNS
    assert trend[0]["low"] == 54720.0
    bad = centre.get("/p/centre?bad=1&format=json").json["rows"]
    assert bad
    assert all(run["passed"] < run["cases"] for run in bad)


def test_scaling_is_held_against_the_smallest_shape(centre: Serving) -> None:
    rows = centre.get("/p/centre/scaling?workload=resnet50&platform=modelarts&mode=cluster&format=json").json["rows"]
    assert [row["cards"] for row in rows] == [8, 16, 32, 64]
    assert rows[0]["efficiency"] == 1.0
    assert rows[3]["efficiency"] == pytest.approx(rows[3]["throughput"] / rows[0]["throughput"] / 8)


def test_search_finds_runs_cases_jobs_and_reasons(centre: Serving) -> None:
    assert "run-00007" in centre.get("/p/centre/search?q=N-00007").text
    assert 'cases/modelarts/bert-4x8"' in centre.get("/p/centre/search?q=BERT-4").text
    assert "resnet50-1x8" in centre.get("/p/centre/search?q=job-resnet50-1750000000").text
    assert "HTTP 503" in centre.get("/p/centre/search?q=503").text
    for words_ in ("%25", "_____", "' OR 1=1 --"):
        assert "Nothing was found" in centre.get(f"/p/centre/search?q={words_.replace(' ', '+')}").text


def test_a_run_and_its_results_name_commit_build_and_what_trained(centre: Serving) -> None:
    for path in ("/p/builds/t/run-1/r/run-1", f"/p/builds/t/run-1/r/run-1/c/{TRAINED.id}"):
        page = centre.get(path).text
        assert "<code>1a2b3c4d5e</code> main" in page, path
        assert '<a href="https://ci.example/12/" rel="noreferrer">Jenkins nightly #12</a>' in page
        assert strict_html.errors(page) == [], path
    assert "numpy miniature (in place of torch)" in page
