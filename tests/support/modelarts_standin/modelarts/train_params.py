"""What an Estimator of V2 is given."""

from __future__ import annotations


class TrainingFiles:
    def __init__(self, code_dir: str | None = None, boot_file: str | None = None) -> None:
        self.code_dir = code_dir
        self.boot_file = boot_file


class InputData:
    def __init__(
        self,
        obs_path: str | None = None,
        local_path: str | None = None,
        name: str | None = None,
        is_local_source: bool = False,
        access_method: str | None = None,
    ) -> None:
        self.obs_path = obs_path
        self.local_path = local_path
        self.name = name
        self.is_local_source = is_local_source
        self.access_method = access_method


class OutputData:
    def __init__(
        self,
        obs_path: str | None = None,
        local_path: str | None = None,
        name: str | None = None,
        access_method: str = "parameter",
    ) -> None:
        self.obs_path = obs_path
        self.local_path = local_path
        self.name = name
        self.access_method = access_method
