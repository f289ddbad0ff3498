"""A platform and a reporter from a plain conftest.py, through the hooks the built-ins use."""

from __future__ import annotations

from commands import run
from yard import WORKERS, Yard

PLATFORM = '''
import pytest_aisbench as ab


class Memory:
    """Objects in a dict: enough of a Store for a platform that trains nothing."""

    def __init__(self):
        self.all = {}

    def check(self, url): pass
    def head(self, url):
        return ab.Head(url, len(self.all[url])) if url in self.all else None
    def read(self, url):
        return self.all.get(url)
    def write(self, url, data, metadata=None):
        self.all[url] = data
    def upload(self, uploads):
        for each in uploads:
            self.write(each.url, b"")
    def objects(self, url):
        return [ab.Head(u, len(d)) for u, d in sorted(self.all.items()) if u.key.startswith(url.key)]
    def download(self, url, folder):
        return []
    def delete(self, url): pass
    def close(self): pass


class Instant:
    name, options, max_jobs, poll_s = "instant", frozenset({"speed"}), 4, 0.01

    def __init__(self, settings):
        self.store, self.root = Memory(), ab.StoreUrl.parse("obs://memory/")

    platform_id, takes_environment = "instant", True

    def share(self): return {}
    def check(self): pass
    def vet(self, spec): return ()
    def render(self, spec):
        body = {"outputs": str(spec.outputs), "world": spec.shape.world, "speed": spec.options["speed"]}
        return ab.Request("POST", "/instant", body)
    def submit(self, request):
        out = ab.StoreUrl.parse(request.body["outputs"])
        for rank in range(request.body["world"]):
            self.store.write(out / f"throughput_{rank}.json", str(request.body["speed"]).encode())
        self.store.write(out / "ranksize.json", str(request.body["world"]).encode())
        self.store.write(out / "accuracy.json", b"0.9")
        return "instant-1"
    def find(self, request): return None
    def named(self, name): return None
    def inspect(self, ids):
        return {i: ab.Job(i, ab.Phase.SUCCEEDED, "Finished", ran_s=3600.0) for i in ids}
    def logs(self, job_id, node=0, since=0): return ab.LogPart("", since)
    def usage(self, job_id, node=0): return {}
    def events(self, job_id): return ()
    def cancel(self, job_id): pass
    def close(self): pass


def pytest_aisbench_platforms():
    return {"instant": f"{__name__}:Instant"}
'''
KIND = '''
import pathlib


class Queued(Instant):
    """Its requests carry no variables, so that a script must."""

    takes_environment = False

    def __init__(self, settings):
        super().__init__(settings)
        self.queue = settings.tables["instant"]["queue"]

    def additions(self, workload, variables):
        if variables:
            pathlib.Path(__file__).with_name("added.txt").write_text(f"start.sh: queue {self.queue}, {variables}")
        return {"start.sh": b"true"}

    def check_code(self, workload, scripts):
        for path, text in scripts:
            if "forbidden" in text:
                raise ab.UsageFault(f"{path} is forbidden")


class InstantKind(ab.PlatformKind):
    name, options, table_keys = "instant", Instant.options, ("queue",)

    def connect(self, settings):
        return Queued(settings)

    def check(self, settings):
        if "instant" not in settings.tables:
            raise ab.UsageFault("instant needs its table", advice="write [instant] to aisbench.toml")

    def missing_framework(self, framework, settings):
        return "jax is not installed there" if framework == "jax" else ""
'''
REPORTER = """
class Chat:
    def __init__(self, config, folder):
        self.file = folder / "chat.txt"

    def say(self, text):
        with self.file.open("a") as file:
            file.write(text + "\\n")

    def case(self, entry):
        self.say(f"{entry.id} {entry.verdict.value}")

    def run(self, entry):
        self.say(f"exit {entry.exit_code}")


class Rude(Chat):
    def case(self, entry):
        raise RuntimeError("reporters may fail")


def pytest_aisbench_reporters():
    return {"chat": f"{__name__}:Chat", "rude": f"{__name__}:Rude"}
"""
WORKLOAD = """name = "{name}"
code = ["code"]
entry = "train.py"
devices = 2
[metrics.throughput]
unit = "images/s"
[instant]
speed = 7.0
environment = { MINE = "yes" }
"""
ORDERS = {"Last": 1000, "Second": 15, "First": -1}
CLAIMS = '[instant."*"]\nthroughput = { at_least = 1 }\naccuracy = { at_least = 0.5 }\n'


def test_a_platform_from_a_conftest(yard: Yard) -> None:
    yard.suite(workload=WORKLOAD, thresholds=CLAIMS)
    (yard.folder / "conftest.py").write_text(PLATFORM)
    ended = yard.pytest("suites", "--nodes", "2", "--aisbench-platform", "instant", cloud=False)
    assert ended.code == 0, ended.out
    (case,) = ended.results["cases"]
    assert case["metrics"]["throughput"] == {"value": 28.0, "unit": "images/s"}
    assert case["card_hours"] == 4.0
    assert case["trials"][0]["platform_phase"] == "Finished"


def test_a_known_platform_of_others_may_have_its_section(yard: Yard) -> None:
    thresholds = CLAIMS + CLAIMS.replace("instant", "local")
    yard.suite(workload=WORKLOAD, thresholds=thresholds)
    (yard.folder / "conftest.py").write_text(PLATFORM)
    assert yard.pytest("suites", "--nodes", "1").code == 0


@WORKERS
def test_reporters_from_a_conftest_and_one_that_fails_changes_nothing(yard: Yard, workers: list[str]) -> None:
    yard.suite()
    (yard.folder / "conftest.py").write_text(REPORTER)
    command = [part for part in yard.command("suites", "--nodes", "1", *workers) if part not in {"-W", "error"}]
    done = run(*command, folder=yard.folder, environment=yard.environment())
    assert done.returncode == 0, done.stdout
    assert (yard.folder / "reports/latest/chat.txt").read_text() == "toy-1x2 PASSED\nexit 0\nexit 0\n"
    assert "reporters may fail" in done.stdout


def test_reporters_are_told_by_their_order_not_by_their_place_in_the_hook(yard: Yard) -> None:
    yard.suite()
    kinds = "".join(f"\n\nclass {name}(Chat):\n    order = {order}\n" for name, order in ORDERS.items())
    names = ", ".join(f'"{name}": f"{{__name__}}:{name}"' for name in ORDERS)
    told = kinds.replace("(Chat):\n", "(Chat):\n    def case(self, entry):\n        self.say(type(self).__name__)\n\n")
    hook = f"\n\ndef pytest_aisbench_reporters():\n    return {{{names}}}\n"
    (yard.folder / "conftest.py").write_text(REPORTER.partition("class Rude")[0] + told + hook)
    ended = yard.pytest("suites", "--nodes", "1")
    assert ended.code == 0, ended.out
    lines = (yard.folder / "reports/latest/chat.txt").read_text().splitlines()
    assert lines[:3] == ["First", "Second", "Last"]


def test_a_platform_brings_its_settings_its_checks_and_its_files(yard: Yard) -> None:
    yard.suite(workload=WORKLOAD, thresholds=CLAIMS)
    (yard.folder / "conftest.py").write_text(PLATFORM.replace(':Instant"', ':InstantKind"') + KIND)
    chosen = ("suites", "--nodes", "1", "--aisbench-platform", "instant")

    ended = yard.pytest(*chosen, cloud=False)
    assert ended.code == 4
    assert "instant needs its table; write [instant] to aisbench.toml" in ended.out

    (yard.folder / "aisbench.toml").write_text('[instant]\nqueue = "night"\n')
    ended = yard.pytest(*chosen, cloud=False)
    assert ended.code == 0, ended.out
    assert (yard.folder / "added.txt").read_text() == "start.sh: queue night, {'MINE': 'yes'}"

    train = yard.folder / "suites/toy/code/train.py"
    train.write_text(train.read_text() + "\n# forbidden\n")
    ended = yard.pytest(*chosen, cloud=False)
    assert ended.code == 4
    assert "toy-1x2: train.py is forbidden" in ended.out


def test_a_platform_says_which_frameworks_it_has_not(yard: Yard) -> None:
    yard.suite(workload=WORKLOAD + 'framework = "jax"\n', thresholds=CLAIMS)
    (yard.folder / "conftest.py").write_text(PLATFORM.replace(':Instant"', ':InstantKind"') + KIND)
    (yard.folder / "aisbench.toml").write_text('[instant]\nqueue = "night"\n')
    ended = yard.pytest("suites", "--nodes", "1", "-rs", "--aisbench-platform", "instant", cloud=False)
    assert "jax is not installed there" in ended.out
    assert ended.code == 5


def test_two_plugins_with_one_name_are_refused(yard: Yard) -> None:
    yard.suite()
    (yard.folder / "conftest.py").write_text("def pytest_aisbench_platforms():\n    return {'local': 'mine:Local'}\n")
    ended = yard.pytest("suites")
    assert ended.code == 4
    assert "two plugins offer the platform 'local'" in ended.out


def test_a_platform_that_cannot_be_imported_is_one_line(yard: Yard) -> None:
    yard.suite()
    (yard.folder / "conftest.py").write_text("def pytest_aisbench_platforms():\n    return {'mine': 'no_such:Mine'}\n")
    ended = yard.pytest("suites", "--aisbench-platform", "mine", cloud=False)
    assert ended.code == 4
    assert "platform 'mine' cannot be loaded from 'no_such:Mine'" in ended.out
