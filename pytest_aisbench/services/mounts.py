"""On which file system a folder lies, and what can be built on it."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from pytest_aisbench.logs import get_logger, log_ignored

_LOG = get_logger("session")
TABLE = Path("/proc/self/mountinfo")

# Where processes are known to share memory through a file, as a write-ahead log needs. Of everything else (NFS, SMB,
# FUSE, 9p, Lustre and what is yet to come) it is not believed: two machines may have the file open.
_SHARES_MEMORY = frozenset({
    *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "bcachefs", "reiserfs", "nilfs2"),
    *("tmpfs", "ramfs", "overlay", "aufs", "vfat", "exfat", "ntfs3"),
})  # fmt: skip


class Mount(NamedTuple):
    point: str
    kind: str  # the file system's own name, such as ext4 or nfs4

    @property
    def shares_memory(self) -> bool:
        return self.kind in _SHARES_MEMORY


def mount_of(folder: Path) -> Mount | None:
    """None where the machine does not say."""
    try:
        table = TABLE.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        log_ignored(_LOG, error, "how %s is mounted", folder)
        return None
    return find_mount(table, PurePosixPath(folder.resolve()))


def find_mount(table: str, folder: PurePosixPath) -> Mount | None:
    """The mount point that is nearest above the folder; of several at one point the last covers the others."""
    found: Mount | None = None
    for line in table.splitlines():
        fields, dash, rest = line.partition(" - ")
        parts = fields.split(" ")
        if not dash or len(parts) < 5:
            continue
        mount = Mount(_decoded(parts[4]), rest.split(" ")[0])
        if folder.is_relative_to(mount.point) and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


def _decoded(field: str) -> str:
    """The kernel writes blanks and backslashes of a name as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda digits: chr(int(digits[1], 8)), field)


def why_no_locks(folder: Path) -> str:
    """What the file system answers to a lock on a new file; empty if it locks, or if no file can be made there."""
    if sys.platform == "win32":
        return ""
    import fcntl

    try:
        # A file of its own: to close any descriptor of a file drops every lock that the process has on it.
        with tempfile.TemporaryFile(dir=folder) as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                return error.strerror or str(error)
    except OSError as error:
        log_ignored(_LOG, error, "whether %s has file locks", folder)
        return ""
    return ""
