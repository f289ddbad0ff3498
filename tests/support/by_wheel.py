"""ModelArts by the vendor's wheel, for which a stand-in is used."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from pytest_aisbench import Access, Settings
from pytest_aisbench.platforms.modelarts.platform import ModelArts

STANDIN = Path(__file__).parent / "modelarts_standin"  # for PYTHONPATH
OPTIONS = {"framework_version": "mindspore_1.3.0-cann_5.0.2-py_3.7-euler_2.8.3-aarch64", "flavor": "modelarts.kat1"}


def by_wheel(access: Access, version: str = "V2", **changed: Any) -> contextlib.closing[ModelArts]:
    given = {"platform": "modelarts", "modelarts_client": "wheel", **changed}
    return contextlib.closing(ModelArts(Settings(access=access, modelarts_version=version, **given)))
