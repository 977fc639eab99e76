"""Bubblewrap's command line: what a local box sees of this machine, and what it may do."""

import shutil
import subprocess
import sys
from enum import StrEnum
from pathlib import Path

from rollouts.backends.base import BOX_APP, BOX_HOME, BOX_REPO, BOX_TOOLS, Image

_ETC = (
    "alternatives",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "nsswitch.conf",
    "ssl",
    "ca-certificates",
)
_ETC_OPEN = ("resolv.conf", "hosts", "services", "protocols")
FIRST_BOX_UID = 1_000_000_000
USER_UID = 1000


class Isolation(StrEnum):
    """How a box is closed off."""

    ROOT = "bubblewrap, as a user of its own"
    """Started by root: root makes the mounts, then each box runs as a user id that nobody else has."""
    USER = "bubblewrap, in a user namespace"
    NONE = "none"


def bubblewrap(isolation: Isolation, network: bool) -> list[str]:
    """The program and everything that does not depend on the box."""
    options = ["--die-with-parent", "--new-session", "--unshare-ipc", "--unshare-pid", "--unshare-uts"]
    options += ["--unshare-cgroup-try", "--hostname", "sandbox"]
    options += [] if network else ["--unshare-net"]
    if isolation is Isolation.USER:
        options += ["--unshare-user", "--disable-userns", "--cap-drop", "ALL"]
        options += ["--uid", str(USER_UID), "--gid", str(USER_UID)]
    else:
        options += ["--cap-drop", "ALL"]
        for capability in ("SETUID", "SETGID", "SETPCAP"):
            options += ["--cap-add", f"CAP_{capability}"]  # setpriv uses them up before the job starts
    options += ["--proc", "/proc", "--dev", "/dev"]
    for folder in ("/tmp", "/run", "/var/tmp"):
        options += ["--perms", "1777", "--size", str(512 * 1024 * 1024), "--tmpfs", folder]
    return [shutil.which("bwrap") or "bwrap", *options, *_system(network)]


def _folders_above(*paths: str) -> list[str]:
    """Mount points' parents are bubblewrap's own and closed to the box's user, unless they are made first."""
    parents = {str(parent) for path in paths for parent in Path(path).parents if parent != Path("/")}
    return [word for parent in sorted(parents) for word in ("--perms", "0755", "--dir", parent)]


def _system(network: bool) -> list[str]:
    """The machine's programs, read-only, and of /etc only what programs cannot do without."""
    prefixes = sorted(prefix for prefix in {sys.prefix, sys.base_prefix} if not prefix.startswith("/usr"))
    options = ["--ro-bind", "/usr", "/usr", "--ro-bind-try", "/opt", "/opt"]
    options += _folders_above("/etc/passwd", BOX_HOME, *prefixes)
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            options += ["--ro-bind", str(path), str(path)]
    for name in (*_ETC, *(_ETC_OPEN if network else ())):
        options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for prefix in prefixes:
        options += ["--ro-bind-try", prefix, prefix]
    return options


def mounts(box: Path, image: Image) -> list[str]:
    """The box's own folders, in their places."""
    options = [
        "--bind",
        f"{box}/app",
        BOX_APP,
        "--bind",
        f"{box}/home",
        BOX_HOME,
        "--ro-bind",
        f"{box}/tools",
        BOX_TOOLS,
    ]
    options += ["--bind", f"{box}/tools/out", f"{BOX_TOOLS}/out"]
    for name in ("passwd", "group"):
        options += ["--ro-bind", f"{box}/{name}", f"/etc/{name}"]
    if image.workdir != BOX_REPO:
        options += _folders_above(image.workdir)
        options += ["--bind", f"{box}/app/repo", image.workdir]
    return options


def works(isolation: Isolation) -> bool:
    """Whether boxes of that kind can be made here, found out by making one."""
    needed = ("bwrap", "setpriv") if isolation is Isolation.ROOT else ("bwrap",)
    if not sys.platform.startswith("linux") or not all(map(shutil.which, needed)):
        return False
    dropped = ["setpriv", f"--reuid={FIRST_BOX_UID}", "--clear-groups", "--bounding-set=-all"]
    command = [*bubblewrap(isolation, network=False), "--", *(dropped if isolation is Isolation.ROOT else []), "true"]
    return subprocess.run(command, capture_output=True, timeout=30, start_new_session=True).returncode == 0
