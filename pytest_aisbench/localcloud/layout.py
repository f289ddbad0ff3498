"""Where the folders of one node lie, seen from the host and seen from its processes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pytest_aisbench.localcloud.private_root import PATHS

MA_HOME = "/home/ma-user"
MODELARTS = f"{MA_HOME}/modelarts"
JOB_DIR = f"{MODELARTS}/user-job-dir"
LOGS = f"{MODELARTS}/log"
PROGRAMS = f"{MA_HOME}/.local/bin"
TEMPORARY = PATHS[-1]
PACKAGES = Path(__file__).with_name("in_container")
"""What a container has of its own: MoXing, and the entry script of V1's base images."""


@dataclass(frozen=True)
class Layout:
    root: Path
    private: bool
    """Its processes see the folders at the platform's own paths; otherwise below the root."""
    paths: tuple[str, ...] = PATHS
    """The platform's own."""

    def outside(self, path: str) -> Path:
        return self.root / PurePosixPath(path).relative_to("/")

    def inside(self, path: str) -> str:
        return path if self.private else str(self.outside(path))

    def followed(self, path: Path) -> Path:
        """A link as the node's processes mean it: to one of the node's folders, not to the host's of that name."""
        target = str(path.readlink()) if self.private and path.is_symlink() else ""
        return self.outside(target) if is_covered(target, self.paths) else path

    def translated(self, command: str) -> str:
        """A command that names the platform's paths, as this node must be told it."""
        known = "|".join(map(re.escape, self.paths))
        return re.sub(rf"(?<![\w./-])(?:{known})(?![\w.-])", lambda found: self.inside(found[0]), command)

    def share(self, source: str) -> Path:
        """What stands for a share of the network: all jobs of this cloud find the same folder."""
        return self.root.parents[1] / "shares" / re.sub(r"[^\w.-]+", "_", source)

    def binds(self, extra: dict[str, Path], interpreter: str) -> list[tuple[str, str]]:
        """`extra`: what else the node is to see, by its path there. The interpreter stays where it is."""
        binds = [(str(self.outside(path)), path) for path in self.paths]
        binds += [(str(folder), path) for path, folder in extra.items()]
        found = Path(interpreter)
        needed = {found.parents[1], found.resolve().parents[1], PACKAGES}
        return binds + [(str(folder), str(folder)) for folder in sorted(needed) if is_covered(str(folder), self.paths)]


def is_covered(path: str, paths: tuple[str, ...] = PATHS) -> bool:
    return any(PurePosixPath(path).is_relative_to(covered) for covered in paths)
