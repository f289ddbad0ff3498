"""Which modules a pytest run, a command and a run of jobs import: what each of them pays for, and nothing else's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from yard import Yard

OURS = "pytest_aisbench"
SERVERS = ("pytest_aisbench.localcloud", "pytest_aisbench.tester_server", "pytest_aisbench.testing")
SDKS = ("requests", "urllib3", "obs", "Crypto", "huaweicloudsdkcore", "tenacity")
SERVER_LIBRARIES = ("sqlalchemy", "psycopg", "starlette", "uvicorn", "httptools")
LIBRARIES = ("numpy", *SDKS, *SERVER_LIBRARIES)
# Every plugin costs every pytest run in its environment; a module more is a cost for people who do not use us.
PLAIN = {"", ".config", ".config.options", ".fixtures", ".hookspecs", ".plugin", ".session", ".stash"}
_NAMES = "print('modules:', *sorted(sys.modules))"


def below(modules: set[str], *packages: str) -> set[str]:
    return {name for name in modules if any(name == each or name.startswith(f"{each}.") for each in packages)}


def modules_after(code: str, folder: Path) -> set[str]:
    """What a Python of its own has imported at the end of `code`."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("AISBENCH_", "PYTEST_"))}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\n{_NAMES}"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return set(done.stdout.rpartition("modules:")[2].split())


def test_a_plain_run_imports_the_options_and_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text("import pytest\n\n@pytest.mark.skip\ndef test_plain():\n    pass\n")
    others = (
        "'-p', 'no:cacheprovider', '-p', 'no:allure_pytest', '-p', 'no:xdist', '-p', 'no:html', '-p', 'no:metadata'"
    )
    modules = modules_after(
        f"import pytest; assert pytest.main(['-p', 'pytest_aisbench.plugin', {others}]) == 0", tmp_path
    )
    assert below(modules, OURS) == {OURS + name for name in PLAIN}
    assert not below(modules, *LIBRARIES, "sqlite3", "multiprocessing", "pkgutil")


def test_jobs_imports_neither_pytest_nor_a_client(tmp_path: Path) -> None:
    modules = modules_after(
        "from pathlib import Path; from pytest_aisbench.ledger.runs import JobLedger\n"
        "JobLedger(Path('ledger.db'), new=True).close()\n"
        "from pytest_aisbench.cli import main; assert main(['jobs', '--ledger', 'ledger.db']) == 0",
        tmp_path,
    )
    assert not below(modules, "pytest", "_pytest", "pluggy", *LIBRARIES, "subprocess", "http", "ssl", "secrets")
    for package in ("engine", "session", "judge", "traininglog", "report", "tester", "net", "stores", *_servers()):
        assert not below(modules, f"{OURS}.{package}"), package
    assert below(modules, f"{OURS}.cli") == {f"{OURS}.cli{name}" for name in ("", ".jobs")}
    kinds = {f"{OURS}.platforms{name}" for name in ("", ".local_kind", ".modelarts")}
    assert below(modules, f"{OURS}.platforms") <= kinds


def test_a_run_imports_no_server_and_no_other_platform(yard: Yard) -> None:
    yard.suite("a")
    (yard.folder / "conftest.py").write_text(
        "import pathlib, sys\n\ndef pytest_unconfigure():\n"
        "    pathlib.Path('modules.txt').write_text(' '.join(sys.modules))\n"
    )
    ended = yard.pytest("suites", "--nodes", "1", fork=False)
    assert ended.code == 0, ended.out
    modules = set((yard.folder / "modules.txt").read_text().split())
    assert below(modules, "obs")
    assert not below(modules, *SERVERS, "numpy", *SERVER_LIBRARIES)
    assert not below(modules, f"{OURS}.platforms.apulis", f"{OURS}.cli")


def test_the_client_of_obs_loads_ciphers_when_somebody_encrypts(tmp_path: Path) -> None:
    modules = modules_after("from pytest_aisbench.stores.obs_vendor import vendor_class; vendor_class()", tmp_path)
    assert "obs.crypto_client" in modules
    assert not below(modules, "Crypto.Math", "Crypto.Hash", "cffi")
    code = (
        "from pytest_aisbench.stores.obs_vendor import vendor_class; vendor_class(); import io, obs\n"
        "cipher = obs.CTRCipherGenerator('0' * 32).new(io.BytesIO(b'secret'))\n"
        "assert len(cipher.read(6)) == 6"
    )
    assert below(modules_after(code, tmp_path), "Crypto.Util._raw_api")


def _servers() -> list[str]:
    return [name.removeprefix(f"{OURS}.") for name in SERVERS]
