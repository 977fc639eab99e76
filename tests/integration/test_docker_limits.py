"""What a container is held to: its profile, its size, its memory; and how each end of it is told."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

from rollouts.backends import base
from rollouts.backends.base import Ended
from rollouts.backends.docker import DockerBackend, can_limit_disk
from rollouts.config import Limits, Profile
from tests.boxes import TREE, Kind, Lab, make_image, open_kind

needs_engine = pytest.mark.docker
HOG = "import time; x = b'x' * (400 << 20); time.sleep(30)"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A backend with the tiny task's image."""
    folder = tmp_path_factory.mktemp("lab")
    lab = Lab(Kind.DOCKER, open_kind(Kind.DOCKER, folder / "cache"), make_image(folder / "tiny"), folder)
    yield lab
    lab.close()


ASKED_FOR_ROOT = {
    "give a file away": "touch f && chown 33:33 f",
    "add a user and become it": "useradd --create-home someone && su someone -c 'id -un; echo x >~/x'",
    "install a package": """
        mkdir -p p/DEBIAN p/usr/share/own && echo x >p/usr/share/own/x
        {
            echo Package: own; echo Version: 1; echo Architecture: all
            echo 'Maintainer: x <x@x>'; echo Description: x
        } >p/DEBIAN/control
        printf '#!/bin/sh\\nchown 33:33 /usr/share/own/x\\n' >p/DEBIAN/postinst && chmod 755 p/DEBIAN/postinst
        dpkg-deb --build p own.deb && dpkg -i own.deb && ls -ln /usr/share/own/x | grep ' 33 '
    """,
    "end what another user runs": "setpriv --reuid=65534 sleep 60 & sleep 1; kill $!; wait $!; [ $? = 143 ]",
}


@needs_engine
@pytest.mark.parametrize("what", ASKED_FOR_ROOT)
@pytest.mark.parametrize("profile", ["strict", "compat"])
def test_only_in_the_compat_profile_an_agent_may(lab: Lab, what: str, profile: Profile) -> None:
    image = replace(lab.image, as_root=profile == "compat")
    ran = lab.run_job(lab.job(ASKED_FOR_ROOT[what], image=image, profile=profile))
    assert (ran.result.exit_code == 0) == (profile == "compat"), ran.log


@needs_engine
def test_in_the_compat_profile_the_patch_is_made_outside_whatever_was_done_to_the_recorded_start(
    lab: Lab,
) -> None:
    image = replace(lab.image, as_root=True)
    script = "id -u; git status --porcelain; rm -rf /rollouts/base.git /rollouts/capture.sh; echo x >x; rm gone.txt"
    ran = lab.run_job(lab.job(script, image=image, profile="compat"))
    assert (ran.result.exit_code, ran.log) == (0, b"0\n")
    assert "diff.patch" not in ran.result.outputs
    expected = {**TREE, "x": b"x\n"}
    del expected["gone.txt"]
    assert lab.tree_after(ran.patch) == expected


@needs_engine
def test_in_the_compat_profile_a_user_that_the_task_names_stays_that_user(lab: Lab, tmp_path: Path) -> None:
    image = replace(make_image(tmp_path / "task", environment={"user": "nobody"}), as_root=True)
    ran = lab.run_job(lab.job("id -un; grep CapEff /proc/self/status; echo x >x", image=image, profile="compat"))
    assert ran.log.split() == [b"nobody", b"CapEff:", b"0000000000000000"]
    assert lab.tree_after(ran.patch) == {**TREE, "x": b"x\n"}


@needs_engine
def test_an_engine_that_refuses_to_limit_a_containers_size_is_taken_as_it_is(lab: Lab) -> None:
    own = open_kind(Kind.DOCKER, lab.folder / "cache")
    assert isinstance(own, DockerBackend)
    own._engine_limits_disk = True  # as its storage driver may have promised
    assert replace(lab, backend=own).run("echo fine").log == b"fine\n"
    own.close()


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"Driver": "overlay2", "DriverStatus": [["Backing Filesystem", "extfs"]]}, False),
        ({"Driver": "overlay2", "DriverStatus": [["Backing Filesystem", "xfs"], ["Supports d_type", "true"]]}, True),
        ({"Driver": "btrfs", "DriverStatus": None}, True),
        ({"Driver": "zfs"}, True),
        ({"Driver": "vfs", "DriverStatus": []}, False),
        ({}, False),
    ],
)
def test_which_engines_can_limit_a_containers_size(info: dict[str, object], expected: bool) -> None:
    assert can_limit_disk(info) is expected


@needs_engine
def test_an_ordinary_run_costs_four_calls(lab: Lab) -> None:
    own = open_kind(Kind.DOCKER, lab.folder / "cache")
    assert isinstance(own, DockerBackend)
    own.prepare(lab.image, lambda data: None)
    calls, api = list[str](), own._api
    assert own._cpus, "asked for once, for all runs"
    send = api.send

    def counted(request: requests.PreparedRequest, **options: Any) -> requests.Response:
        calls.append(f"{request.method} {request.path_url.partition('?')[0].split('/')[-1][:8]}")
        return send(request, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "send", counted)
        replace(lab, backend=own).run("sleep 1; echo x >x")
        own.close()
    assert [call.split()[0] for call in calls] == ["POST", "POST", "POST", "DELETE"]
    assert [call.split()[1] for call in calls[:3]] == ["create", "attach", "start"]


EXITS = {
    "main process out of memory": (f'exec python3 -c "{HOG}"', Ended.OUT_OF_MEMORY, None),
    "a child out of memory, main exits 0": (f'python3 -c "{HOG}"; exit 0', Ended.EXITED, 0),
    "our kill on timeout": ("kill -s STOP $PPID; sleep 60", Ended.TIMEOUT, None),
    "our end at the time limit": ("sleep 60", Ended.TIMEOUT, None),
    "the agent itself exits 137": ("exit 137", Ended.EXITED, 137),
    "the agent itself exits 124": ("exit 124", Ended.EXITED, 124),
    "command missing": ("exec /no/such/command", Ended.EXITED, 127),
    "command not executable": ("exec ./README.md", Ended.EXITED, 126),
    "SEGV": ("kill -s SEGV $$", Ended.EXITED, 139),
}


@needs_engine
@pytest.mark.parametrize("case", EXITS)
def test_exit_classification(lab: Lab, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "GRACE_S", 0.5)
    script, ended, code = EXITS[case]
    timeout_s = 1.0 if ended is Ended.TIMEOUT else 60.0
    ran = lab.run(f"echo x >x; {script}", timeout_s=timeout_s, limits=Limits(cpus=1.0, memory_mb=96, pids=64))
    assert (ran.result.ended, ran.result.exit_code) == (ended, code)
    assert lab.tree_after(ran.patch) == {**TREE, "x": b"x\n"}
