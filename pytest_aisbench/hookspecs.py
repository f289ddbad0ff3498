"""The hooks we offer. A plugin, or a plain `conftest.py`, adds a platform or a reporter with three lines."""

from __future__ import annotations

from collections.abc import Mapping

import pytest


@pytest.hookspec
def pytest_aisbench_platforms() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Platforms by name, each as `"module:Class"`, imported only when it is chosen::

        def pytest_aisbench_platforms():
            return {"volcano": "our_volcano:Volcano"}

    The class is built as `Volcano(settings)` and does what `pytest_aisbench.Platform` says;
    `pytest_aisbench.testing.PlatformContract` proves it. A platform with settings or checks of its own is named by its
    `pytest_aisbench.PlatformKind` instead. Then: `pytest suites/ --aisbench-platform volcano`.
    """


@pytest.hookspec
def pytest_aisbench_reporters() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Reporters by name, each as `"module:Class"`; all of them report::

        def pytest_aisbench_reporters():
            return {"chat": "our_chat:Chat"}

    The class is built as `Chat(config, folder)` once the first workload is known, does what
    `pytest_aisbench.Reporter` says, and is registered as a pytest plugin, so that it may implement pytest's hooks too.
    An error in `case` or `run` is a warning and changes no verdict.
    """


@pytest.hookspec
def pytest_aisbench_power_sources() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Sources of power samples by name, each as `"module:Class"`; of a job the first that knows of it counts::

        def pytest_aisbench_power_sources():
            return {"bmc": "our_bmc:Bmc"}

    The class is built as `Bmc(settings)` when the run opens and does what `pytest_aisbench.PowerSource` says. An error
    in `samples` is the reason why the power of a job is not known, and changes no verdict.
    """
