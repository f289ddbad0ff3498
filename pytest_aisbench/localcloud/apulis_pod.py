"""The inside of one pod of an Apulis job: shared folders, DLWS_ variables, host files and rank tables."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_aisbench.localcloud import apulis_files, container_environment, layout
from pytest_aisbench.localcloud.container import LONGEST_TMPDIR, Container
from pytest_aisbench.localcloud.layout import Layout
from pytest_aisbench.localcloud.rendezvous import node_address

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_aisbench.localcloud.apulis_pods import Pods
    from pytest_aisbench.localcloud.launch import Launch
    from pytest_aisbench.localcloud.node import Spec
    from pytest_aisbench.localcloud.objects import Objects

_OWN = ("/pod", "/dlts-runtime", layout.TEMPORARY)
_FILES = ("/pod.env", "/etc/hosts")
_IMAGE = layout.PACKAGES / "apulis"
_PROGRAMS = _IMAGE / "bin"


class Pod(Container):
    def __init__(self, root: Path, launch: Launch, index: int) -> None:
        super().__init__(root, launch, index)
        if launch.pods is None:
            raise ValueError("not a job of pods")
        self._pods: Pods = launch.pods
        self._role = launch.pods.roles[index]
        self._paths = (*_OWN, *launch.pods.mounts)

    @property
    def mark(self) -> tuple[str, str]:
        return "POD_NAME", self._pods.name(self._role)

    def prepare(self, objects: Objects, *, private: bool) -> None:
        """All pods are prepared before the first one starts, so each finds what the head has to write."""
        self._places = Layout(self.root, private, self._paths)
        for folder in (*_OWN, layout.LOGS, "/view", "/etc"):
            self.path(folder).mkdir(parents=True, exist_ok=True)
        if not private and len(os.fsencode(self.temporary)) > LONGEST_TMPDIR:
            self.temporary = Path(tempfile.mkdtemp(prefix="aisbench-node-"))
        for path, shared in self._pods.mounts.items():
            shared.mkdir(parents=True, exist_ok=True)
            if not private:
                self.path(path).parent.mkdir(parents=True, exist_ok=True)
                self.path(path).symlink_to(shared)
        shutil.copytree(_IMAGE / "scripts", self.path("/pod/scripts"), dirs_exist_ok=True)
        known = Path("/etc/hosts").read_text(errors="replace")
        self.path("/etc/hosts").write_text(known + apulis_files.hosts(self._pods))
        apulis_files.write_own(self._pods, self._role)
        if self._role == self._pods.head:
            apulis_files.write_common(self._pods)

    def write_rank_table(self, status: str) -> None:
        """They are in place since `prepare`."""

    def spec(self, port: int, store: Mapping[str, str], grace: float) -> Spec:
        """`store` is not given to the job: this platform lends no keys."""
        pods, private = self._pods, self._places.private
        meeting = self._places.inside(f"/job/.ready/{self._launch.job_id}")
        environment = self._environment(port)
        exported = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
        self.path("/pod.env").write_text(exported)
        return {
            "environment": environment,
            "pre_start": [],
            "pre_start_folder": "",
            "pre_start_environment": "",
            "ranks": [
                {
                    "command": [
                        "bash",
                        self._places.inside("/pod/scripts/bootstrap.sh"),
                        meeting,
                        str(len(pods.roles)),
                    ],
                    "folder": self._places.inside(f"/home/{pods.user}"),
                    "log": str(self.root / "command.log"),
                    "environment": {},
                }
            ],
            "log": str(self.worker_log),
            "silent": True,
            "rank_table": "",
            "rank_table_v1": "",
            "grace": grace,
            "view": str(self.path("/view")) if private else "",
            "binds": self._binds() if private else [],
        }

    def _binds(self) -> list[tuple[str, str]]:
        extra = dict(self._pods.mounts) | {file: self.path(file) for file in _FILES}
        return self._places.binds(extra, self._launch.interpreter)

    def _environment(self, port: int) -> dict[str, str]:
        launch, pods, role = self._launch, self._pods, self._role
        variables = container_environment.plain()
        programs = [str(_PROGRAMS), str(Path(launch.interpreter).parent), variables.get("PATH", os.defpath)]
        home = self._places.inside(f"/home/{pods.user}")
        variables |= {
            "PATH": os.pathsep.join(programs),
            "HOME": home,
            "USER": pods.user,
            "TMPDIR": layout.TEMPORARY if self._places.private else str(self.temporary),
            "PYTHONUNBUFFERED": "1",
            # The local cloud's own gift, as on its other platforms: a port that nobody else has.
            "MASTER_ADDR": node_address(0),
            "MASTER_PORT": str(port),
        }
        variables |= launch.environment
        packages = [variables.get("PYTHONPATH", ""), str(layout.PACKAGES)]
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, packages))
        variables |= {**pods.environment} | apulis_files.variables(pods, role) | dict([self.mark])
        variables["DLWS_LAUNCH_CMD"] = self._places.translated(role.command)
        return variables
