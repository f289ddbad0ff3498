"""What the platform `local` needs, before its cloud starts: its keys, and Pythons that have the frameworks."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from pytest_aisbench.config.options import FRAMEWORKS, LOCAL, python_by_framework
from pytest_aisbench.config.settings import PlatformKind, Settings
from pytest_aisbench.errors import UsageFault
from pytest_aisbench.logs import get_logger, log_ignored
from pytest_aisbench.platforms.modelarts import LOCAL_OPTIONS

if TYPE_CHECKING:
    from pytest_aisbench.platforms.local import Local

_LOG = get_logger("platform")
_LOOK = """import importlib.util, pathlib, sys
spec = importlib.util.find_spec(sys.argv[1])
folders = spec.submodule_search_locations or () if spec else ()
sys.exit(not any(list(pathlib.Path(folder).glob(sys.argv[2])) for folder in folders))
"""
# A file that proves a framework works: Horovod also installs if it could not be built for TensorFlow.
_PARTS = {"horovod": "tensorflow/mpi_lib*"}
_PATIENCE_S = 30.0


class LocalKind(PlatformKind):
    name = LOCAL
    options = LOCAL_OPTIONS
    emulation = True

    def connect(self, settings: Settings) -> Local:
        from pytest_aisbench.platforms.local import Local

        return Local(settings)

    def uses_access(self, table: Any, *, on_local_cloud: bool) -> bool:
        return False

    def missing_framework(self, framework: str, settings: Settings) -> str:
        return explain_missing_framework(framework, settings)

    def require_lasting_jobs(self, settings: Settings) -> None:
        if settings.cloud is None:
            advice = "name --cloud FILE, or another --platform"
            what = "the platform local, without a cloud that runs, has no jobs but a run's own"
            raise UsageFault(what, advice=advice)


def own_interpreters(settings: Settings) -> dict[str, str]:
    """The Python of each framework that has one of its own."""
    return {framework: python for framework, python in python_by_framework(settings.frameworks).items() if python}


def explain_missing_framework(framework: str, settings: Settings) -> str:
    """Why jobs of the local cloud cannot train with a framework, in one line; empty if they can.

    A cloud that already runs has its own interpreters, which this process does not know.
    """
    if framework not in FRAMEWORKS or settings.cloud is not None:
        return ""
    python = python_by_framework(settings.frameworks).get(framework) or sys.executable
    if _has(python, framework):
        return ""
    advice = (
        f"pip install 'pytest-aisbench[{framework}]' there, or name another: --aisbench-frameworks {framework}=PYTHON"
    )
    return f"{framework} is not installed for {python}; {advice}"


@functools.cache
def _has(python: str, module: str) -> bool:
    import subprocess

    try:
        look = [python, "-c", _LOOK, module, _PARTS.get(module, "__init__.py")]
        looked = subprocess.run(look, capture_output=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        log_ignored(_LOG, error, "whether %s has %s", python, module)
        return False
    return looked.returncode == 0
