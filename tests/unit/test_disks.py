"""The floor of free disk."""

from pathlib import Path

import pytest

from rollouts.disks import FreeDisk


@pytest.fixture
def free_mb(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How much room each folder has."""
    free: dict[str, int] = {}

    class Usage:
        def __init__(self, folder: Path) -> None:
            if folder.name not in free:
                raise FileNotFoundError(folder)
            self.free = free[folder.name] * 1024 * 1024

    monkeypatch.setattr("rollouts.disks.shutil.disk_usage", Usage)
    return free


def test_enough_room_is_no_trouble(free_mb: dict[str, int]) -> None:
    free_mb.update(a=100, b=2000)
    assert FreeDisk(100, [Path("a"), Path("b")]).trouble() is None


def test_the_disk_with_too_little_is_named(free_mb: dict[str, int]) -> None:
    free_mb.update(a=100, b=99)
    said = FreeDisk(100, [Path("a"), Path("b")]).trouble()
    assert said == "b: only 99 MB are free, less than min_free_disk_mb = 100"


def test_no_floor_is_no_trouble(free_mb: dict[str, int]) -> None:
    free_mb.update(a=0)
    assert FreeDisk(0, [Path("a")]).trouble() is None


def test_a_folder_that_is_not_there_is_passed_over(free_mb: dict[str, int]) -> None:
    free_mb.update(b=5)
    assert FreeDisk(10, [Path("a"), Path("b")]).trouble() == "b: only 5 MB are free, less than min_free_disk_mb = 10"
