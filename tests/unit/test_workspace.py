"""Sources: where they come from, what is changed about them, and that nothing of their past goes along."""

import http.server
import json
import os
import shutil
import threading
from base64 import b64encode
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rollouts.errors import ImageFailed, SandboxFailed
from rollouts.tasks import Task
from rollouts.workspace import Changes, Source, count_changes, find_source, prepare_source, repo_info
from tests.samples import git, make_repository, make_task, read_tree, write_files


def source_of(task: Task, cache: Path) -> Source:
    return prepare_source(task, cache)


def names(folder: Path) -> set[str]:
    return {name.decode() for name in read_tree(folder)}


def git_task(folder: Path, url: object, **repo: Any) -> Task:
    return make_task(folder, meta={"repo": {"git_url": str(url), **repo}})


@pytest.fixture
def history(tmp_path: Path) -> tuple[Path, list[str]]:
    commits = make_repository(
        tmp_path / "upstream",
        {"a.txt": "one\n", "src/deep/b.txt": "b\n", "docs/c.txt": "c\n"},
        {"a.txt": "two, the answer\n"},
    )
    return tmp_path / "upstream", commits


def test_a_repo_folder_is_copied_with_modes_and_links(tmp_path: Path) -> None:
    write_files(tmp_path / "t/repo", {"run.sh": "#!/bin/sh\n", "é.bin": b"\0\xff"})
    (tmp_path / "t/repo/run.sh").chmod(0o755)
    (tmp_path / "t/repo/link").symlink_to("run.sh")
    task = make_task(tmp_path / "t")
    source = source_of(task, tmp_path / "cache")
    assert read_tree(source.tree) == read_tree(tmp_path / "t/repo")
    assert source.commit is None
    assert source.origin == str(tmp_path / "t/repo")


def test_the_prepared_folder_is_left_byte_for_byte(tmp_path: Path) -> None:
    task = make_task(
        tmp_path / "t",
        repo={"a.txt": "a\n", "old/x": "x\n"},
        files={"overlay_repo_files/b.txt": "b\n"},
        overrides={"remove_repo_paths": ["old/"], "inject_files": [{"path": "a.txt", "content": "new"}]},
    )
    before = read_tree(tmp_path / "t")
    source_of(task, tmp_path / "cache")
    assert read_tree(tmp_path / "t") == before


def test_a_history_beside_the_repo_folder_does_not_go_along(tmp_path: Path) -> None:
    make_repository(tmp_path / "t/repo", {"a": "1"}, {"a": "2"})
    make_repository(tmp_path / "t/repo/nested", {"n": "1"})
    source = source_of(make_task(tmp_path / "t"), tmp_path / "cache")
    assert git("rev-list", "--all", "--count", cwd=source.tree) == "1"
    assert not (source.tree / "nested/.git").exists()
    assert (source.tree / "nested/n").read_text() == "1"


@pytest.mark.parametrize("form", ["path", "url", "relative"])
def test_a_repository_is_taken_at_its_start_commit(
    form: str, tmp_path: Path, history: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream, commits = history
    monkeypatch.chdir(tmp_path)
    url = {"path": str(upstream), "url": upstream.as_uri(), "relative": "upstream"}[form]
    source = source_of(git_task(tmp_path / "t", url, start_commit_sha=commits[0]), tmp_path / "cache")
    assert (source.tree / "a.txt").read_text() == "one\n"
    assert source.commit == commits[0]


def test_a_path_may_be_relative_to_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_repository(tmp_path / "t/upstream", {"a.txt": "one\n"})
    monkeypatch.chdir("/")
    assert (source_of(git_task(tmp_path / "t", "upstream"), tmp_path / "cache").tree / "a.txt").exists()


def test_a_branch_is_taken_at_its_tip(tmp_path: Path, history: tuple[Path, list[str]]) -> None:
    upstream, commits = history
    git("branch", "feature/old", commits[0], cwd=upstream)
    source = source_of(git_task(tmp_path / "t", upstream, branch="feature/old"), tmp_path / "cache")
    assert source.commit == commits[0]


def test_without_commit_and_branch_the_head_is_taken(tmp_path: Path, history: tuple[Path, list[str]]) -> None:
    upstream, commits = history
    assert source_of(git_task(tmp_path / "t", upstream), tmp_path / "cache").commit == commits[1]


def test_a_missing_commit_is_named(tmp_path: Path, history: tuple[Path, list[str]]) -> None:
    task = git_task(tmp_path / "t", history[0], start_commit_sha="1" * 40)
    with pytest.raises(ImageFailed, match=r"t/tb_meta\.json: repo\.start_commit_sha: .*upstream has no 1{40}$"):
        source_of(task, tmp_path / "cache")


def test_a_missing_branch_is_named(tmp_path: Path, history: tuple[Path, list[str]]) -> None:
    with pytest.raises(ImageFailed, match=r"repo\.branch: .*upstream has no nowhere$"):
        source_of(git_task(tmp_path / "t", history[0], branch="nowhere"), tmp_path / "cache")


def test_a_fetch_is_out_of_reach_of_the_terminals_signals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "session"
    monkeypatch.setenv("GIT_SSH_COMMAND", f"cat /proc/self/stat >{told}; false")
    with pytest.raises(SandboxFailed):
        source_of(git_task(tmp_path / "t", "ssh://nowhere.invalid/x"), tmp_path / "cache")
    session = told.read_text().rpartition(")")[2].split()[3]
    assert int(session) != os.getsid(0)


def test_a_repository_that_is_not_there_is_named(tmp_path: Path) -> None:
    said = r"t/tb_meta\.json: repo\.git_url: cannot fetch /nowhere/at/all: .*does not exist"
    with pytest.raises(SandboxFailed, match=said) as caught:
        source_of(git_task(tmp_path / "t", "/nowhere/at/all"), tmp_path / "cache")
    assert type(caught.value) is SandboxFailed  # it may be there the next time
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache/git").glob("*.git"))


def test_only_one_commit_without_remotes_goes_along(tmp_path: Path, history: tuple[Path, list[str]]) -> None:
    upstream, commits = history
    git("tag", "later", commits[1], cwd=upstream)
    source = source_of(git_task(tmp_path / "t", upstream, start_commit_sha=commits[0]), tmp_path / "cache")
    assert git("rev-list", "--all", "--count", cwd=source.tree) == "1"
    assert git("remote", cwd=source.tree) == ""
    assert git("tag", cwd=source.tree) == ""
    assert git("status", "--porcelain", cwd=source.tree) == ""
    assert not (source.tree / ".git/objects/info/alternates").exists()
    everything = b"".join(path.read_bytes() for path in source.tree.rglob("*") if path.is_file())
    assert str(upstream).encode() not in everything
    blobs = git("cat-file", "--batch-all-objects", "--batch-check=%(objectname)", cwd=source.tree).split()
    assert commits[0] not in blobs
    assert all("the answer" not in git("cat-file", "-p", blob, cwd=source.tree) for blob in blobs)


def test_sparse_checkout_keeps_only_what_is_named(tmp_path: Path, history: tuple[Path, list[str]]) -> None:
    source = source_of(git_task(tmp_path / "t", history[0], sparse_checkout=["/src/", "docs"]), tmp_path / "cache")
    assert names(source.tree) == {"src/deep/b.txt", "docs/c.txt"}


def test_line_ends_and_filters_of_the_repository_are_not_applied(tmp_path: Path) -> None:
    upstream = tmp_path / "upstream"
    make_repository(upstream, {"crlf.txt": b"a\r\nb\r\n"})
    write_files(upstream, {".gitattributes": "* text=auto eol=crlf\n", "lf.txt": "a\nb\n", "id.txt": "$Id$\n"})
    git("add", "-A", cwd=upstream)
    git("commit", "-q", "-m", "attributes", cwd=upstream)
    source = source_of(git_task(tmp_path / "t", upstream), tmp_path / "cache")
    assert (source.tree / "lf.txt").read_bytes() == b"a\nb\n"
    assert (source.tree / "id.txt").read_bytes() == b"$Id$\n"


def test_what_was_fetched_and_made_is_used_again(tmp_path: Path, history: tuple[Path, list[str]]) -> None:
    upstream, commits = history
    task = git_task(tmp_path / "t", upstream, start_commit_sha=commits[0])
    first = source_of(task, tmp_path / "cache")
    made = first.tree.stat().st_ino
    shutil.rmtree(upstream)
    assert source_of(task, tmp_path / "cache") == first
    assert first.tree.stat().st_ino == made


def test_a_commit_that_came_later_is_fetched(tmp_path: Path, history: tuple[Path, list[str]]) -> None:
    upstream, commits = history
    source_of(git_task(tmp_path / "t", upstream, start_commit_sha=commits[0]), tmp_path / "cache")
    write_files(upstream, {"a.txt": "three\n"})
    git("commit", "-q", "-a", "-m", "later", cwd=upstream)
    later = git("rev-parse", "HEAD", cwd=upstream)
    source = source_of(git_task(tmp_path / "t2", upstream, start_commit_sha=later), tmp_path / "cache")
    assert (source.tree / "a.txt").read_text() == "three\n"
    assert len(list((tmp_path / "cache/git").glob("*.git"))) == 1


def test_find_source_makes_nothing(tmp_path: Path, history: tuple[Path, list[str]]) -> None:
    upstream, commits = history
    task = git_task(tmp_path / "t", upstream, start_commit_sha=commits[0])
    assert find_source(task, tmp_path / "cache") is None
    assert not (tmp_path / "cache").exists()
    made = source_of(task, tmp_path / "cache")
    assert find_source(task, tmp_path / "cache") == made
    folder_task = make_task(tmp_path / "t2")
    found = find_source(folder_task, tmp_path / "elsewhere")
    assert found is not None
    assert not (tmp_path / "elsewhere").exists()
    assert found.digest == source_of(folder_task, tmp_path / "elsewhere").digest


def test_credentials_are_neither_told_nor_kept(tmp_path: Path) -> None:
    task = git_task(tmp_path / "t", "http://user:hunter2secret@127.0.0.1:9/x.git", start_commit_sha="1" * 40)
    with pytest.raises(SandboxFailed) as caught:
        source_of(task, tmp_path / "cache")
    assert type(caught.value) is SandboxFailed
    assert "hunter2secret" not in str(caught.value)
    assert "http://127.0.0.1:9/x.git" in str(caught.value)
    assert holding(b"hunter2secret", tmp_path / "cache") == []


def holding(text: bytes, folder: Path) -> list[Path]:
    """Every file whose name or content has that text."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if text in path.read_bytes() or text in os.fsencode(path)]


class Served(http.server.SimpleHTTPRequestHandler):
    """A web server that wants a password, as git meets one."""

    def do_GET(self) -> None:
        if self.headers["Authorization"] != f"Basic {b64encode(b'user:hunter2secret').decode()}":
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.end_headers()
            return
        super().do_GET()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it has there
        """Quiet."""


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address, with a password, at which `tmp_path` can be read."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)  # nobody's own credential helper
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Served, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://user:hunter2secret@127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_credentials_that_work_are_used_and_not_kept(
    tmp_path: Path, history: tuple[Path, list[str]], served: str
) -> None:
    upstream, commits = history
    git("update-server-info", cwd=upstream)
    url, cache = f"{served}/upstream/.git", tmp_path / "cache"
    first = git_task(tmp_path / "t", url, start_commit_sha=commits[0])
    source = source_of(first, cache)
    assert (source.tree / "a.txt").read_text() == "one\n"
    assert source.origin == url.replace("user:hunter2secret@", "")
    assert holding(b"hunter2secret", cache) == []
    write_files(upstream, {"a.txt": "three\n"})
    git("commit", "-q", "-a", "-m", "later", cwd=upstream)
    git("update-server-info", cwd=upstream)
    later = git_task(tmp_path / "t2", url, start_commit_sha=git("rev-parse", "HEAD", cwd=upstream))
    source = source_of(later, cache)
    assert (source.tree / "a.txt").read_text() == "three\n"
    assert len(list((cache / "git").glob("*.git"))) == 1
    assert holding(b"hunter2secret", cache) == []
    assert "hunter2secret" not in json.dumps(repo_info(source, later))
    config = next((cache / "git").glob("*.git")) / "config"
    assert git("config", "--file", str(config), "remote.origin.url", cwd=tmp_path) == source.origin
    shutil.rmtree(upstream)
    gone = git_task(tmp_path / "t3", url, start_commit_sha="1" * 40)
    with pytest.raises(SandboxFailed, match="cannot fetch http://127") as caught:
        source_of(gone, cache)
    assert "hunter2secret" not in str(caught.value)
    assert holding(b"hunter2secret", cache) == []


@pytest.mark.parametrize("variable", ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"])
def test_variables_of_a_git_hook_have_no_influence(
    variable: str, tmp_path: Path, history: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream, commits = history
    monkeypatch.setenv(variable, str(tmp_path / "hook"))
    source = source_of(git_task(tmp_path / "t", upstream, start_commit_sha=commits[0]), tmp_path / "cache")
    assert names(source.tree) == {"a.txt", "src/deep/b.txt", "docs/c.txt"}
    assert not (tmp_path / "hook").exists()


def test_the_users_settings_and_name_do_not_reach_the_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(tmp_path / "t", repo={"a.txt": b"one\r\n", "ignored.log": "x"})
    plain = repo_info(source_of(task, tmp_path / "cache"), task)["base_commit"]
    config = "[core]\n autocrlf = true\n hooksPath = /nowhere\n excludesFile = ~/all\n[user]\n name = me\n"
    home = write_files(tmp_path / "home", {".gitconfig": config, "all": "*\n"})
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_AUTHOR_NAME", "me")
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2020-01-01T00:00:00Z")
    assert repo_info(source_of(task, tmp_path / "cache2"), task)["base_commit"] == plain


def test_many_threads_get_one_whole_source(tmp_path: Path) -> None:
    task = make_task(tmp_path / "t", repo={f"f{n}": "x" for n in range(20)})
    found: list[Source] = []
    threads = [threading.Thread(target=lambda: found.append(source_of(task, tmp_path / "c"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert len(names(found[0].tree)) == 20
    assert [path.name for path in (tmp_path / "c/sources").iterdir()] == [found[0].digest]


# --- overlays and overrides ---------------------------------------------------------------------------------------


def test_overlay_removal_and_injection_happen_in_that_order(tmp_path: Path) -> None:
    task = make_task(
        tmp_path / "t",
        repo={"kept.txt": "kept", "same.txt": "old", "old/x": "x"},
        files={"overlay_repo_files/same.txt": "overlay", "overlay_repo_files/old/y": "y"},
        overrides={
            "remove_repo_paths": ["old/", "same.txt"],
            "inject_files": [{"path": "old/z", "content": "z"}, {"path": "new/deep/é.txt", "content": "é\r\n"}],
        },
    )
    tree = source_of(task, tmp_path / "cache").tree
    assert names(tree) == {"kept.txt", "old/z", "new/deep/é.txt"}
    assert (tree / "new/deep/é.txt").read_bytes() == "é\r\n".encode()


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("a.py", {"b.py", "d/c.py", "d/e/f.txt", "pages/[id].js", "pages/i.js"}),
        ("d/", {"a.py", "b.py", "pages/[id].js", "pages/i.js"}),
        ("d", {"a.py", "b.py", "pages/[id].js", "pages/i.js"}),
        ("*.py", {"d/c.py", "d/e/f.txt", "pages/[id].js", "pages/i.js"}),
        ("**/*.py", {"d/e/f.txt", "pages/[id].js", "pages/i.js"}),
        ("d/**", {"a.py", "b.py", "pages/[id].js", "pages/i.js"}),
        ("d/e", {"a.py", "b.py", "d/c.py", "pages/[id].js", "pages/i.js"}),
        ("pages/[id].js", {"a.py", "b.py", "d/c.py", "d/e/f.txt", "pages/i.js"}),
        ("nothing*", {"a.py", "b.py", "d/c.py", "d/e/f.txt", "pages/[id].js", "pages/i.js"}),
    ],
)
def test_paths_are_removed_by_name_folder_or_glob(pattern: str, left: set[str], tmp_path: Path) -> None:
    repo = dict.fromkeys(("a.py", "b.py", "d/c.py", "d/e/f.txt", "pages/[id].js", "pages/i.js"), "x")
    task = make_task(tmp_path / "t", repo=repo, overrides={"remove_repo_paths": [pattern]})
    assert names(source_of(task, tmp_path / "cache").tree) == left


@pytest.mark.parametrize(
    "overrides",
    [
        {"remove_repo_paths": ["link/secret"]},
        {"remove_repo_paths": ["link/*"]},
        {"inject_files": [{"path": "link/planted", "content": "x"}]},
        {"inject_files": [{"path": "a.txt/below", "content": "x"}]},
        {"inject_files": [{"path": "folder", "content": "x"}]},
        {"remove_repo_paths": ["a**b"]},
    ],
)
def test_overrides_that_cannot_be_applied_are_one_line(overrides: dict[str, Any], tmp_path: Path) -> None:
    outside = write_files(tmp_path / "outside", {"secret": "s"})
    write_files(tmp_path / "t/repo", {"a.txt": "a", "folder/x": "x"})
    (tmp_path / "t/repo/link").symlink_to(outside)
    task = make_task(tmp_path / "t", overrides=overrides)
    with pytest.raises(ImageFailed, match=r"overrides\.json: ") as caught:
        source_of(task, tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert names(outside) == {"secret"}
    assert not list((tmp_path / "cache/sources").iterdir())


@pytest.mark.parametrize("repo", [{"a.txt": "a"}, {"nope": "a file"}])
def test_a_subdir_that_is_not_there_is_named(repo: dict[str, str], tmp_path: Path) -> None:
    task = make_task(tmp_path / "t", meta={"repo": {"subdir": "nope"}}, repo=repo)
    for _ in range(2):  # also when the source itself was made before
        with pytest.raises(ImageFailed) as caught:
            source_of(task, tmp_path / "cache")
        assert str(caught.value) == f"{tmp_path}/t/tb_meta.json: repo.subdir: no such folder, got nope"


def test_a_subdir_that_overrides_bring_along_is_there(tmp_path: Path) -> None:
    overrides = {"repo": {"subdir": "new/deep"}, "inject_files": [{"path": "new/deep/x", "content": "x"}]}
    task = make_task(tmp_path / "t", overrides=overrides)
    assert (source_of(task, tmp_path / "cache").tree / "new/deep").is_dir()


def test_a_pipe_in_the_repo_folder_is_named(tmp_path: Path) -> None:
    write_files(tmp_path / "t/repo", {"a.txt": "a", "deep/b.txt": "b"})
    os.mkfifo(tmp_path / "t/repo/deep/pipe")
    task = make_task(tmp_path / "t")
    with pytest.raises(ImageFailed, match=r"t/repo/deep/pipe: cannot be copied: .*is a named pipe$") as caught:
        source_of(task, tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache/sources").iterdir())


@pytest.mark.parametrize(
    ("overlay", "said"), [("folder", "folder: is a folder in the repository"), ("a.txt/below", "a.txt/below: ")]
)
def test_an_overlay_that_does_not_fit_the_repository_is_named(overlay: str, said: str, tmp_path: Path) -> None:
    files = {f"overlay_repo_files/{overlay}": "x"}
    task = make_task(tmp_path / "t", repo={"a.txt": "a", "folder/x": "x"}, files=files)
    with pytest.raises(ImageFailed) as caught:
        source_of(task, tmp_path / "cache")
    assert str(caught.value).startswith(f"{tmp_path}/t: {said}")
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache/sources").iterdir())


def test_an_overlay_through_a_link_is_refused(tmp_path: Path) -> None:
    outside = write_files(tmp_path / "outside", {})
    write_files(tmp_path / "t/repo", {"a.txt": "a"})
    (tmp_path / "t/repo/link").symlink_to(outside)
    task = make_task(tmp_path / "t", files={"overlay_repo_files/link/planted": "x"})
    with pytest.raises(ImageFailed, match="link/planted: goes through a link"):
        source_of(task, tmp_path / "cache")
    assert not list(outside.iterdir())


def test_a_file_put_over_a_link_does_not_follow_it(tmp_path: Path) -> None:
    outside = write_files(tmp_path / "outside", {"victim": "as it was"})
    for name in ("one", "two"):
        (tmp_path / "t/repo").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"t/repo/{name}").symlink_to(outside / "victim")
    task = make_task(
        tmp_path / "t",
        files={"overlay_repo_files/one": "overlay"},
        overrides={"inject_files": [{"path": "two", "content": "injected"}]},
    )
    tree = source_of(task, tmp_path / "cache").tree
    assert (outside / "victim").read_text() == "as it was"
    assert read_tree(tree)[b"one"] == ("file", b"overlay")
    assert read_tree(tree)[b"two"] == ("file", b"injected")


def test_overlay_links_and_executables_stay_what_they_are(tmp_path: Path) -> None:
    write_files(tmp_path / "t/overlay_repo_files", {"run": "#!/bin/sh\n"})
    (tmp_path / "t/overlay_repo_files/run").chmod(0o755)
    (tmp_path / "t/overlay_repo_files/main.py").symlink_to("run")
    tree = source_of(make_task(tmp_path / "t"), tmp_path / "cache").tree
    assert read_tree(tree) == {b"run": ("executable", b"#!/bin/sh\n"), b"main.py": ("link", b"run")}


def test_each_change_to_what_a_source_is_made_of_has_a_digest_of_its_own(tmp_path: Path) -> None:
    variants: list[dict[str, Any]] = [
        {},
        {"repo": {"main.py": "other"}},
        {"files": {"overlay_repo_files/x": "x"}},
        {"overrides": {"remove_repo_paths": ["x"]}},
        {"overrides": {"inject_files": [{"path": "x", "content": "1"}]}},
        {"overrides": {"inject_files": [{"path": "x", "content": "2"}]}},
    ]
    digests = set()
    for number, variant in enumerate(variants):
        found = find_source(make_task(tmp_path / f"{number}/t", **variant), tmp_path / "cache")
        assert found is not None
        digests.add(found.digest)
    assert len(digests) == len(variants)


def test_instructions_do_not_change_the_source(tmp_path: Path) -> None:
    one = find_source(make_task(tmp_path / "1/t", instructions="one"), tmp_path)
    two = find_source(make_task(tmp_path / "2/t", instructions="two"), tmp_path)
    assert one is not None
    assert two is not None
    assert one.digest == two.digest


def test_an_empty_repo_folder_is_a_source(tmp_path: Path) -> None:
    source = source_of(make_task(tmp_path / "t", repo={}), tmp_path / "cache")
    assert read_tree(source.tree) == {}
    assert git("rev-list", "--count", "HEAD", cwd=source.tree) == "1"


def test_repo_info_tells_where_the_source_is_from(tmp_path: Path, history: tuple[Path, list[str]]) -> None:
    upstream, commits = history
    task = git_task(tmp_path / "t", upstream, start_commit_sha=commits[0], subdir="src", branch="main")
    source = source_of(task, tmp_path / "cache")
    info = json.loads(json.dumps(repo_info(source, task)))
    assert info == {
        "schema": 1,
        "origin": str(upstream),
        "commit": commits[0],
        "base_commit": git("rev-parse", "HEAD", cwd=source.tree),
        "digest": source.digest,
        "branch": "main",
        "subdir": "src",
        "sparse_checkout": [],
        "overrides": None,
    }


def test_the_base_commit_depends_on_content_alone(tmp_path: Path) -> None:
    found = set()
    for number in range(2):
        task = make_task(tmp_path / f"{number}/t", repo={"a": "1"})
        os.utime(tmp_path / f"{number}/t/repo/a", (number, number))
        found.add(repo_info(source_of(task, tmp_path / f"{number}/cache"), task)["base_commit"])
    assert len(found) == 1


# --- counting -----------------------------------------------------------------------------------------------------


def test_changes_are_counted_within_hunks_only(tmp_path: Path) -> None:
    patch = tmp_path / "diff.patch"
    patch.write_text(
        "diff --git a/x b/x\nindex 1..2 100644\n--- a/x\n+++ b/x\n@@ -1,3 +1,4 @@\n context\n---- looks like a header\n"
        "+++ b/so does this\n+diff --git a/y b/y\n context\n\\ No newline at end of file\n"
        "diff --git a/z b/z\nnew file mode 100644\nindex 0..1\n--- /dev/null\n+++ b/z\n@@ -0,0 +1 @@\n+one\n"
    )
    assert count_changes(patch) == Changes(files=2, lines_added=3, lines_removed=1)


def test_an_empty_patch_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "diff.patch").write_bytes(b"")
    assert count_changes(tmp_path / "diff.patch") == Changes(0, 0, 0)


def test_binary_changes_count_as_files_without_lines(tmp_path: Path) -> None:
    patch = "diff --git a/p b/p\nindex 1..2\nGIT binary patch\nliteral 3\nKcmZQzU\n\nliteral 0\nHcmV?d00001\n\n"
    (tmp_path / "diff.patch").write_text(patch)
    assert count_changes(tmp_path / "diff.patch") == Changes(1, 0, 0)
