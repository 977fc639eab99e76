"""Git on the host: bare mirrors of tasks' repositories, and the tree of one commit out of them.

Nothing of the user's or the machine's git configuration has a say in what a tree looks like.
"""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from filelock import FileLock

from rollouts.config import find_path
from rollouts.digests import digest_of
from rollouts.errors import ImageFailed, SandboxFailed
from rollouts.tasks import Task
from rollouts.terminal import without_credentials

FETCH_LIMIT_S = 1800
_KEY_AND_VALUE = ((0, "KEY"), (1, "VALUE"))
ATTRIBUTES = "* -text -ident -filter -working-tree-encoding !diff !eol\n"
"""Files go into the base and into patches byte for byte, whatever the repository's own attributes ask for."""
_SETTINGS = (
    "core.fileMode=true",
    "core.symlinks=true",
    "core.autocrlf=false",
    "core.protectNTFS=false",
    "core.protectHFS=false",
    "safe.directory=*",
    "gc.auto=0",
)
_FIXED = {
    "GIT_AUTHOR_NAME": "rollouts",
    "GIT_AUTHOR_EMAIL": "rollouts@localhost",
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00+0000",
    "GIT_COMMITTER_NAME": "rollouts",
    "GIT_COMMITTER_EMAIL": "rollouts@localhost",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00+0000",
}


def run_git(*arguments: str, cwd: Path, limit_s: float = 300) -> str:
    """One git command; its output as a text, or ImageFailed."""
    done = start_git(*arguments, cwd=cwd, limit_s=limit_s)
    if done.returncode:
        raise ImageFailed(f"git {arguments[0]} failed: {one_line(done.stderr.decode(errors='replace'))}")
    return os.fsdecode(done.stdout).strip()


def start_git(
    *arguments: str,
    cwd: Path,
    limit_s: float = 300,
    data: bytes = b"",
    environ: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """One git command, whatever the machine's configuration, with `data` on its stdin; ImageFailed if it cannot run."""
    clean = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        **_FIXED,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CEILING_DIRECTORIES": str(cwd.resolve().parent),
        **(environ or {}),
    }
    options = [word for setting in _SETTINGS for word in ("-c", setting)]
    try:
        return subprocess.run(
            ["git", *options, *arguments],
            cwd=cwd,
            env=clean,
            input=data,
            capture_output=True,
            timeout=limit_s,
            start_new_session=True,  # a Ctrl-C on the terminal is for us, and not for what we do meanwhile
        )
    except FileNotFoundError:
        raise ImageFailed("git is not installed here; install it to prepare tasks") from None
    except subprocess.TimeoutExpired:
        raise ImageFailed(f"git {arguments[0]} took more than {limit_s:.0f} s") from None


def one_line(text: str) -> str:
    """What a command said, on one line, without credentials."""
    return without_credentials(" ".join(text.split()))[:500]


def origin_of(task: Task) -> str:
    """Where the source comes from, without user name or password."""
    if task.part("repo"):
        return str(task.folder / "repo")
    url = task.repo.git_url or ""
    parts = urlsplit(url)
    if parts.scheme and parts.netloc:
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))
    return url


def _git_url(task: Task) -> str:
    url = task.repo.git_url or ""
    local = "://" not in url and not re.match(r"[^/]+:", url)
    return str(find_path(url, task.folder).resolve()) if local else url


def mirror_path(task: Task, folder: Path) -> Path:
    """Where the mirror of the task's repository is or would be."""
    return folder / f"{digest_of(_git_url(task))[:24]}.git"


def mirror_of(task: Task, folder: Path) -> Path:
    """A bare mirror of the task's repository that holds the wanted commit; fetched only when it does not."""
    url, path = _git_url(task), mirror_path(task, folder)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = task.repo.start_commit_sha
    with FileLock(f"{path}.lock"):
        if path.exists() and wanted and has_commit(path, wanted):
            return path
        try:
            _fetch(url, origin_of(task), path)
        except SandboxFailed as exc:  # stays one: a host may be out of reach for a while
            where = f"{task.folder}/tb_meta.json: repo.git_url"
            raise SandboxFailed(f"{where}: cannot fetch {origin_of(task)}: {exc}") from None
    return path


def _fetch(url: str, shown: str, path: Path) -> None:
    """Make or update a mirror. Credentials in the URL are used, and kept nowhere: not even in an argument."""
    import git  # heavy, and only tasks with a git_url need it

    class OwnSession(git.Git):
        """Out of reach of the terminal's signals."""

        def execute(self, *arguments: Any, **options: Any) -> Any:
            return super().execute(*arguments, start_new_session=True, **options)

    class Repo(git.Repo):
        GitCommandWrapperType = OwnSession

    environ = {"GIT_TERMINAL_PROMPT": "0", "GIT_SSH_COMMAND": os.environ.get("GIT_SSH_COMMAND", "ssh -oBatchMode=yes")}
    url, credentials = _split_credentials(url)
    environ |= credentials
    try:
        if path.exists():
            repo = Repo(path)
            with repo.git.custom_environment(**environ):
                repo.git.fetch("--prune", url, "+refs/*:refs/*", kill_after_timeout=FETCH_LIMIT_S)
        else:
            for left in path.parent.glob(f".cloning-{path.stem}-*"):  # by a process that was killed: we have the lock
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=f".cloning-{path.stem}-", dir=path.parent) as scratch:
                mirror = Repo.clone_from(url, Path(scratch) / "mirror", mirror=True, env=environ)
                mirror.git.remote("set-url", "origin", shown)
                (Path(scratch) / "mirror").rename(path)
    except git.GitError as exc:
        raise SandboxFailed(one_line(getattr(exc, "stderr", "") or str(exc)).removeprefix("stderr: ")) from None


def _split_credentials(url: str) -> tuple[str, dict[str, str]]:
    """A web address without user and password, and the variables by which git learns them."""
    parts = urlsplit(url)
    who, at, host = parts.netloc.rpartition("@")
    if parts.scheme not in ("http", "https") or not at:
        return url, {}
    user, _, password = who.partition(":")
    helper = "!f() { echo username=$FETCH_USER; echo password=$FETCH_PASSWORD; }; f"
    key = f"credential.{parts.scheme}://{host}.helper"  # for this host alone, wherever it redirects to
    settings = ((key, ""), (key, helper))  # the empty one forgets all others
    numbered = {f"GIT_CONFIG_{word}_{n}": pair[i] for n, pair in enumerate(settings) for i, word in _KEY_AND_VALUE}
    values = {"FETCH_USER": unquote(user), "FETCH_PASSWORD": unquote(password)}
    return urlunsplit(parts._replace(netloc=host)), {"GIT_CONFIG_COUNT": str(len(settings)), **numbered, **values}


def has_commit(mirror: Path, commit: str) -> bool:
    """Whether the mirror has that commit already."""
    with contextlib.suppress(ImageFailed):
        return bool(re.fullmatch("[0-9a-f]{7,40}", commit)) and bool(commit_id(mirror, commit))
    return False


def commit_id(mirror: Path, revision: str) -> str:
    """The full name of a revision; raises ImageFailed when there is none."""
    return run_git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", cwd=mirror)


def resolve_commit(task: Task, mirror: Path) -> str:
    """The commit that the task starts from."""
    wanted = task.repo.start_commit_sha or task.repo.branch or "HEAD"
    try:
        return commit_id(mirror, wanted)
    except ImageFailed:
        key = "start_commit_sha" if task.repo.start_commit_sha else "branch"
        raise ImageFailed(f"{task.folder}/tb_meta.json: repo.{key}: {origin_of(task)} has no {wanted}") from None


def check_out(mirror: Path, commit: str, sparse: tuple[str, ...], tree: Path) -> None:
    """Put the tree of one commit into a new folder, byte for byte as it is in the history, and no history with it."""
    run_git(
        "clone", "-q", "--shared", "--no-checkout", "--template=", str(mirror.resolve()), tree.name, cwd=tree.parent
    )
    (tree / ".git/info").mkdir(exist_ok=True)
    (tree / ".git/info/attributes").write_text(ATTRIBUTES)
    if sparse:
        run_git("sparse-checkout", "set", "--no-cone", "--end-of-options", *sparse, cwd=tree)
    run_git("checkout", "-q", "--detach", commit, cwd=tree)
    shutil.rmtree(tree / ".git")
