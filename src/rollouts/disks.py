"""Room on this machine's disks: below a floor no new run starts, so that those at work can end well."""

import shutil
from collections.abc import Iterable
from pathlib import Path


class FreeDisk:
    """Watches over the disks that runs write to."""

    def __init__(self, floor_mb: int, folders: Iterable[Path]) -> None:
        """`floor_mb` of 0: no floor."""
        self._floor_mb, self._folders = floor_mb, tuple(folders)

    def trouble(self) -> str | None:
        """Which disk has too little room, for people; None when all have enough."""
        for folder in self._folders if self._floor_mb else ():
            try:
                free_mb = shutil.disk_usage(folder).free // (1024 * 1024)
            except OSError:  # not there any more, or not yet: whoever writes there will say so
                continue
            if free_mb < self._floor_mb:
                return f"{folder}: only {free_mb} MB are free, less than min_free_disk_mb = {self._floor_mb}"
        return None
