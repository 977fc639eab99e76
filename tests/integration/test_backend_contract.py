"""The sandbox contract, one suite over every backend and every way in which the local one works.

A test that only boxes with walls can pass asks for `boxed`; all others run on plain processes too.
"""

import contextlib
import hashlib
import os
import signal
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from rollouts.backends import base, disk_use
from rollouts.backends.base import Ended, Job
from rollouts.backends.bubblewrap import Isolation
from rollouts.backends.local import LocalBackend
from rollouts.config import DockerSettings, Limits
from rollouts.errors import JobCancelled, SandboxFailed
from rollouts.owner import Owner
from tests.boxes import (
    BOXED,
    PATIENCE_S,
    TREE,
    ArgumentWatch,
    Collector,
    Kind,
    Lab,
    containers_of,
    forget_image,
    local_trouble,
    make_image,
    memory_mb,
    open_kind,
    processes,
    processes_with,
    start_holder,
    wait_until,
    write_tree,
)

KINDS = [*(k for k in Kind if k is not Kind.DOCKER), pytest.param(Kind.DOCKER, marks=pytest.mark.docker)]
GRACE_S = 1.0
SUPERVISOR_FD = "/proc/$PPID/fd/3"
"""Where the handout is written to, as a job of the same user sees it."""


@pytest.fixture(scope="module", autouse=True)
def _short_grace() -> Iterator[None]:
    """Five seconds per timed-out box are right for agents and long for tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "GRACE_S", GRACE_S)
        yield


@pytest.fixture(scope="module", params=KINDS, ids=str)
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A backend with the tiny task's image."""
    kind: Kind = request.param
    trouble = local_trouble(kind) if kind is not Kind.DOCKER else None
    if trouble and os.environ.get("CI") and "not installed" in trouble:
        pytest.fail(f"CI is set, so this test must run: {trouble}", pytrace=False)
    if trouble:
        pytest.skip(trouble)
    folder = tmp_path_factory.mktemp("lab")
    lab = Lab(kind, open_kind(kind, folder / "cache"), make_image(folder / "tiny"), folder)
    yield lab
    lab.close()


@pytest.fixture
def boxed(lab: Lab) -> Lab:
    """The same, where boxes have walls. Without them `kill -9 -1` would end every process of the user."""
    if lab.kind not in BOXED:
        pytest.skip("a plain process is not isolated")
    return lab


@pytest.fixture
def own_lab(lab: Lab, tmp_path: Path) -> Iterator[Lab]:
    """A backend that a test may spoil."""
    own = Lab(lab.kind, open_kind(lab.kind, lab.folder / "cache"), lab.image, tmp_path)
    yield own
    own.close()


@pytest.fixture
def token() -> str:
    """A word that marks the processes of one test."""
    return f"token{uuid.uuid4().hex}"


# --- exit codes and output ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 77, 137])
def test_the_commands_own_exit_code_is_the_result(lab: Lab, code: int) -> None:
    ran = lab.run(f"exit {code}")
    assert (ran.result.ended, ran.result.exit_code) == (Ended.EXITED, code)


def test_a_missing_command_gives_127(lab: Lab) -> None:
    ran = lab.run("", argv=("/no/such/command",))
    assert (ran.result.ended, ran.result.exit_code) == (Ended.EXITED, 127)


def test_a_command_that_is_not_executable_gives_126(lab: Lab) -> None:
    ran = lab.run("", argv=("./README.md",))
    assert (ran.result.ended, ran.result.exit_code) == (Ended.EXITED, 126)


def test_a_segmentation_fault_gives_139(lab: Lab) -> None:
    ran = lab.run("kill -s SEGV $$")
    assert (ran.result.ended, ran.result.exit_code) == (Ended.EXITED, 139)


def test_stdout_and_stderr_reach_the_sink_in_the_order_written(lab: Lab) -> None:
    ran = lab.run("for n in 1 2 3 4 5; do echo out $n; echo err $n >&2; done; printf 'no newline'")
    expected = "".join(f"out {n}\nerr {n}\n" for n in range(1, 6)) + "no newline"
    assert ran.log == expected.encode()


def test_output_comes_while_the_job_runs(lab: Lab) -> None:
    running = lab.start("echo started; sleep 0.5; echo later")
    assert b"later" not in running.sink.data
    running.end().free()
    assert bytes(running.sink.data) == b"started\nlater\n"


def test_a_hundred_megabytes_of_output_pass_through_with_flat_memory(lab: Lab) -> None:
    size, line = 100_000_000, b"0123456789" * 99 + b"012345678\n"
    begin, peak, digest, count = memory_mb(), 0.0, hashlib.sha256(), 0

    def sink(data: bytes) -> None:
        nonlocal peak, count
        count += len(data)
        digest.update(data)
        if count % 64 == 0 or count > size - 1_000_000:
            peak = max(peak, memory_mb())

    ran = lab.run(f"yes {line.decode().strip()} | head -c {size}; echo done > done.txt", sink)
    assert count == size
    assert digest.digest() == hashlib.sha256(line * (size // len(line))).digest()
    assert peak - begin < 50
    assert lab.tree_after(ran.patch) == {**TREE, "done.txt": b"done\n"}


def test_a_slow_sink_loses_nothing_of_a_job_that_is_long_gone(lab: Lab) -> None:
    size, seen = 3_000_000, 0

    def sink(data: bytes) -> None:
        nonlocal seen
        seen += len(data)
        time.sleep(0.3 if seen > size - 140_000 else 0.1 if seen > size - 1_300_000 else 0)

    lab.run(f"head -c {size} /dev/zero", sink)
    assert seen == size


# --- files, environment, what lies where -------------------------------------------------------------------------


def test_binary_files_go_in_and_come_out_byte_for_byte(lab: Lab) -> None:
    content = bytes(range(256)) * 5000 + b"\r\n\0\xff"
    script = "in=${ROLLOUTS_OUT%out}in; cp $in/some.bin copied.bin && cp $in/empty empty"
    ran = lab.run(script, files={"some.bin": content, "empty": b""})
    assert lab.tree_after(ran.patch) == {**TREE, "copied.bin": content, "empty": b""}


def test_environment_values_reach_the_job_and_no_argument_of_any_process(lab: Lab) -> None:
    secret = f"s3cr'et \"$(x)\n{uuid.uuid4().hex}"
    with ArgumentWatch(secret[-32:]) as watch:
        ran = lab.run('printf %s "$KEY" | sha256sum; sleep 0.3', env={"KEY": secret})
    assert ran.log.split()[0] == hashlib.sha256(secret.encode()).hexdigest().encode()
    assert watch.looks > 1
    assert not watch.seen


def test_nothing_of_our_own_environment_reaches_the_job(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_USER", "do not pass on")
    assert b"SECRET_OF_THE_USER" not in lab.run("env").log


def test_home_is_writable_and_instructions_are_readable_and_notes_come_out(lab: Lab) -> None:
    ran = lab.run('echo x >"$HOME/x" && cat "$HOME/x" "$ROLLOUTS_INSTRUCTIONS" && echo mine >"$ROLLOUTS_OUT/notes.md"')
    assert ran.result.exit_code == 0
    assert ran.log == b"x\nSay hello.\n"
    assert ran.files["notes.md"] == b"mine\n"


def test_notes_that_are_a_link_are_not_followed(lab: Lab) -> None:
    ran = lab.run('ln -s /etc/passwd "$ROLLOUTS_OUT/notes.md"')
    assert ran.result.exit_code == 0
    assert "notes.md" not in ran.files


def test_the_job_starts_in_the_repository(lab: Lab) -> None:
    ran = lab.run('cat README.md; [ "$PWD" = "$ROLLOUTS_REPO" ] && git status --porcelain && git log --format=%s')
    assert ran.log == b"hello\nStart of the task\n"


def test_the_job_is_not_root(boxed: Lab) -> None:
    ran = boxed.run("id -u; grep -E '^Cap(Eff|Prm|Bnd)|NoNewPrivs' /proc/self/status")
    uid, *status = ran.log.decode().splitlines()
    assert int(uid) != 0
    assert {line.split()[1].strip("0") for line in status if line.startswith("Cap")} == {""}
    assert "NoNewPrivs:\t1" in status


def test_tools_and_recorded_base_cannot_be_changed_by_the_job(boxed: Lab) -> None:
    script = """
        tools=${ROLLOUTS_OUT%/out}
        for file in supervise.sh capture.sh instructions.md base.git/HEAD base.git/new new; do
            (echo evil >"$tools/$file") 2>/dev/null && echo "wrote $file"
            rm -f "$tools/$file" 2>/dev/null && [ -e "$tools/$file" ] && echo "removed $file"
        done
        for name in base.git supervise.sh out in; do
            mv "$tools/$name" "$tools/moved" 2>/dev/null && echo "moved $name"
        done
        echo changed >README.md
    """
    ran = boxed.run(script)
    assert ran.log == b""
    assert boxed.tree_after(ran.patch) == {**TREE, "README.md": b"changed\n"}


# --- patches -----------------------------------------------------------------------------------------------------

CHANGES: dict[str, tuple[str, dict[str, bytes | None]]] = {
    "nothing": ("true", {}),
    "changed": ("echo more >>README.md", {"README.md": b"hello\nmore\n"}),
    "new": ("mkdir -p a/b && echo new >a/b/c", {"a/b/c": b"new\n"}),
    "ignored": ("echo '*.log' >.gitignore; echo x >a.log", {".gitignore": b"*.log\n"}),
    "deleted": ("rm gone.txt", {"gone.txt": None}),
    "renamed": ("mv gone.txt 'there and back'", {"gone.txt": None, "there and back": b"delete me\n"}),
    "binary": (r"printf '\000\001\377' >>data.bin", {"data.bin": bytes(range(256)) + b"\0\1\xff"}),
    "linked": ("ln -s /etc/passwd link", {"link": b"/etc/passwd"}),
    "hard linked": ("ln README.md twin", {"twin": b"hello\n"}),
    "committed": (
        "echo c >c && git add -A && git -c user.name=a -c user.email=a@b commit -qm c && rm gone.txt",
        {"c": b"c\n", "gone.txt": None},
    ),
    "no git folder": ("rm -rf .git; echo x >>README.md", {"README.md": b"hello\nx\n"}),
    "a broken git folder": ("echo junk >.git/HEAD; rm -rf .git/objects; echo n >n", {"n": b"n\n"}),
    "a nested repository": ("mkdir in && cd in && git init -q . && echo f >f", {"in/f": b"f\n"}),
    "closed files": ("mkdir shut && echo s >shut/s && chmod 000 shut/s shut README.md", {"shut/s": b"s\n"}),
    "everything deleted": ("rm -rf ./* .git", dict.fromkeys(TREE)),
}
SUICIDE = "kill -9 -1"


def _expected(changes: dict[str, bytes | None]) -> dict[str, bytes]:
    merged: dict[str, bytes | None] = {**TREE, **changes}
    return {name: content for name, content in merged.items() if content is not None}


@pytest.mark.parametrize("change", CHANGES)
def test_the_patch_holds_what_the_job_did(lab: Lab, change: str) -> None:
    script, changes = CHANGES[change]
    ran = lab.run(script)
    assert ran.result.exit_code == 0
    assert lab.tree_after(ran.patch) == _expected(changes)
    assert bool(ran.patch) == bool(changes)


def test_file_modes_are_part_of_the_patch(lab: Lab) -> None:
    assert b"old mode 100644\nnew mode 100755\n" in lab.run("chmod +x README.md").patch


def test_without_capture_no_patch_is_handed_out(lab: Lab) -> None:
    job = lab.job("echo x >>README.md", capture=False)
    lab.backend.prepare(job.image, lambda data: None)
    result = lab.backend.run(job, lambda data: None)
    result.free()
    assert "diff.patch" not in result.outputs


# --- the end of a job --------------------------------------------------------------------------------------------

FREEZE = "(kill -s STOP $PPID; sleep 2; kill -s CONT $PPID) & while ! grep -q T /proc/$PPID/stat; do :; done;"
"""Stops the supervisor for a moment, and waits until it is."""
STUBBORN = """
    loop='trap "" TERM HUP; echo up; while :; do sleep 0.05; done'
    setsid sh -c "$loop" "$TOKEN" &
    (sh -c "$loop" "$TOKEN" &)
    (setsid sh -c "$loop" "$TOKEN" &)
"""
"""Three children that will not go: a session of its own, an orphan, both. All ignore SIGTERM."""


def test_a_timeout_ends_every_process_in_the_box(lab: Lab, token: str) -> None:
    script = f"{STUBBORN} trap '' TERM; echo started; while :; do sleep 0.05; done"
    begin = time.monotonic()
    running = lab.start(script, env={"TOKEN": token}, timeout_s=2.0)
    running.sink.wait_for(b"up\n", 3)
    assert len(processes_with(token)) >= 3
    result = running.end()
    took_s = time.monotonic() - begin
    wait_until(lambda: not processes_with(token), "all children are dead")
    result.free()
    assert (result.ended, result.exit_code) == (Ended.TIMEOUT, None)
    assert 2.0 <= result.duration_s < 2.0 + GRACE_S + 2.0
    assert took_s < 2.0 + GRACE_S + 10.0


def test_a_timed_out_job_keeps_its_partial_patch(lab: Lab) -> None:
    ran = lab.run("echo partial >partial.txt; exec sleep 60", timeout_s=0.5)
    assert ran.result.ended is Ended.TIMEOUT
    assert ran.result.duration_s < 0.5 + GRACE_S + 2.0
    assert lab.tree_after(ran.patch) == {**TREE, "partial.txt": b"partial\n"}


def test_a_job_gets_the_grace_to_clean_up_after_sigterm(lab: Lab) -> None:
    ran = lab.run("trap 'echo tidy >tidy.txt; exit 0' TERM; while :; do sleep 0.05; done", timeout_s=0.5)
    assert ran.result.ended is Ended.TIMEOUT
    assert lab.tree_after(ran.patch) == {**TREE, "tidy.txt": b"tidy\n"}


def test_a_process_left_in_the_background_is_ended_and_holds_nothing_up(lab: Lab, token: str) -> None:
    begin = time.monotonic()
    running = lab.start(f"{STUBBORN} echo started; sleep 1; exit 0", env={"TOKEN": token})
    running.sink.wait_for(b"up\n", 3)
    result = running.end()
    took_s = time.monotonic() - begin
    wait_until(lambda: not processes_with(token), "all children are dead")
    result.free()
    assert (result.ended, result.exit_code) == (Ended.EXITED, 0)
    assert took_s < 15


def test_output_without_end_from_the_background_does_not_hold_up_the_end(lab: Lab, token: str) -> None:
    script = 'setsid sh -c "exec yes $TOKEN" & sleep 0.3; exit 0'
    ran = lab.run(script, lambda data: time.sleep(0.02), env={"TOKEN": token})
    assert (ran.result.ended, ran.result.exit_code) == (Ended.EXITED, 0)
    wait_until(lambda: not processes_with(token), "the flood is over")


def test_a_job_that_freezes_its_supervisor_is_ended_by_the_watchdog(lab: Lab, token: str) -> None:
    script = f"{STUBBORN} echo partial >partial.txt; kill -s STOP $PPID; sleep 60"
    ran = lab.run(script, timeout_s=1.0, env={"TOKEN": token})
    assert ran.result.ended is Ended.TIMEOUT
    assert ran.took_s < 1.0 + 2 * GRACE_S + 10.0
    wait_until(lambda: not processes_with(token), "all children are dead")
    assert lab.tree_after(ran.patch) == {**TREE, "partial.txt": b"partial\n"}


HOG = "import time; x = b'x' * (400 << 20); time.sleep(30)"
TIGHT = Limits(cpus=1.0, memory_mb=96, pids=64)


def test_out_of_memory_is_told_and_the_patch_is_kept(lab: Lab) -> None:
    ran = lab.run(f'echo partial >partial.txt; exec python3 -c "{HOG}"', limits=TIGHT)
    assert (ran.result.ended, ran.result.exit_code) == (Ended.OUT_OF_MEMORY, None)
    assert lab.tree_after(ran.patch) == {**TREE, "partial.txt": b"partial\n"}


def test_a_child_out_of_memory_does_not_fail_a_command_that_ends_well(lab: Lab) -> None:
    if lab.kind is not Kind.DOCKER:
        pytest.skip("the local backend watches the whole box: going over the limit ends all of it")
    ran = lab.run(f'python3 -c "{HOG}"; echo "child $?"; exit 0', limits=TIGHT)
    assert b"child 137" in ran.log
    assert (ran.result.ended, ran.result.exit_code) == (Ended.EXITED, 0)


TINY = Limits(cpus=1.0, memory_mb=512, pids=128, disk_mb=16)


def test_a_box_that_writes_more_than_it_may_is_ended_and_its_patch_is_kept(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(disk_use, "LOOK_EVERY_S", 0.1)
    script = "echo x >x; mkdir big; for n in 1 2 3; do head -c 7000000 /dev/urandom >big/$n; done; rm -r big/1; "
    ran = lab.run(f"{script} head -c 7000000 /dev/urandom >big/1; exec sleep 60", limits=TINY)
    assert (ran.result.ended, ran.result.exit_code) == (Ended.EXITED, None)
    assert ran.result.notes[-1] == "wrote more than 16 MB, limits.disk_mb"
    assert lab.tree_after(ran.patch)["x"] == b"x\n"


def test_a_box_that_writes_less_than_it_may_is_left_alone(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its source alone is larger than that."""
    monkeypatch.setattr(base, "LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(disk_use, "LOOK_EVERY_S", 0.1)
    image = make_image(lab.folder / "large", files={"repo/large": b"x" * 20_000_000}, cache_dir=lab.folder / "cache")
    ran = lab.run("head -c 7000000 /dev/urandom >$HOME/x; sleep 2; echo x >x", image=image, limits=TINY)
    assert (ran.result.ended, ran.result.exit_code) == (Ended.EXITED, 0)
    assert lab.tree_after(ran.patch) == {**TREE, "x": b"x\n"}


def test_no_single_file_grows_beyond_the_limit(lab: Lab) -> None:
    """The kernel itself sees to that, so it holds at any instant."""
    ran = lab.run("head -c 20000000 /dev/zero >$HOME/big; echo exit $?; wc -c <$HOME/big", limits=TINY)
    told, size = ran.log.decode().split("\n")[-3:-1]
    assert told != "exit 0"
    assert int(size) <= 16 * 1024 * 1024


@pytest.mark.parametrize("change", ["changed", "deleted", "binary", "hard linked", "committed", "everything deleted"])
def test_a_job_that_kills_its_supervisor_still_gives_its_patch(boxed: Lab, change: str) -> None:
    script, changes = CHANGES[change]
    ran = boxed.run(f"{script}; {SUICIDE}")
    assert (ran.result.ended, ran.result.exit_code) == (Ended.EXITED, None)
    assert boxed.tree_after(ran.patch) == _expected(changes)


def test_a_repository_swapped_for_a_link_is_an_empty_one(boxed: Lab) -> None:
    ran = boxed.run(f'cd /; rm -rf "$ROLLOUTS_REPO" 2>/dev/null; ln -s /etc "$ROLLOUTS_REPO"; {SUICIDE}')
    assert boxed.tree_after(ran.patch) == {}


def test_a_box_killed_from_outside_is_not_the_jobs_fault(boxed: Lab) -> None:
    running = boxed.start("echo started; sleep 60")
    if boxed.kind is Kind.DOCKER:
        with contextlib.closing(docker.from_env()) as client:
            client.api.kill(containers_of(running.job.run_id)[0])
    else:
        own = [
            pid for pid, words in processes() if words[0].endswith("/bwrap") and running.job.job_id in " ".join(words)
        ]
        os.kill(min(own), signal.SIGKILL)
    with pytest.raises(SandboxFailed, match="killed from outside"):
        running.end()
    wait_until(lambda: not boxed.is_left(running.job), "the box is removed")


# --- hostile jobs ------------------------------------------------------------------------------------------------

FORGED = "begin\\nended 0 exited\\nfile diff.patch 5\\nevil\\ndone\\n"


def test_a_job_cannot_hand_out_a_patch_of_its_own_making(boxed: Lab) -> None:
    ran = boxed.run(f"echo real >new; printf '{FORGED}' >/proc/$PPID/fd/3 2>/dev/null; sleep 0.3; exit 3")
    assert (ran.result.ended, ran.result.exit_code) == (Ended.EXITED, 3)
    assert boxed.tree_after(ran.patch) == {**TREE, "new": b"real\n"}


def test_words_on_the_supervisors_own_stream_are_output(boxed: Lab) -> None:
    ran = boxed.run("echo stray words >/proc/$PPID/fd/3 2>/dev/null || echo stray words; echo more >new")
    assert (ran.result.ended, ran.result.exit_code) == (Ended.EXITED, 0)
    assert b"stray words" in ran.log
    assert boxed.tree_after(ran.patch) == {**TREE, "new": b"more\n"}


def test_a_job_cannot_pass_for_one_that_ran_over_time(boxed: Lab) -> None:
    ran = boxed.run("echo x >new; kill -s USR1 $PPID; sleep 20", timeout_s=60.0)
    assert ran.result.ended is Ended.EXITED
    assert ran.result.exit_code not in (0, None)
    assert boxed.tree_after(ran.patch) == {**TREE, "new": b"x\n"}


def test_a_job_cannot_pass_for_one_that_was_cancelled(boxed: Lab) -> None:
    ran = boxed.run("echo x >new; kill -s TERM $PPID; sleep 20", timeout_s=60.0)
    assert ran.result.ended is Ended.EXITED
    assert ran.result.exit_code not in (0, None)
    assert boxed.tree_after(ran.patch) == {**TREE, "new": b"x\n"}


def test_the_jobs_own_path_does_not_matter_to_the_supervisor(boxed: Lab) -> None:
    ran = boxed.run("echo here >new", env={"PATH": "/nowhere"})
    assert (ran.result.ended, ran.result.exit_code) == (Ended.EXITED, 0)
    assert boxed.tree_after(ran.patch) == {**TREE, "new": b"here\n"}


LIES = {
    "noise": "head -c 100000 /dev/urandom",
    "endless line": "yes | tr -d '\\n' | head -c 100000",
    "a second begin": "echo begin",
    "a path": "printf 'ended 0 exited\\nfile ../../escaped 3\\nabc'",
    "an absolute path": "printf 'ended 0 exited\\nfile /tmp/escaped 3\\nabc'",
    "a superscript exit code": "printf 'ended \\302\\262 exited\\n'",
    "an endless size": "printf 'ended 0 exited\\nfile diff.patch %05000d\\n' 7",
    "a huge size": "printf 'ended 0 exited\\nfile diff.patch 99999999999999\\n'",
    "a negative size": "printf 'ended 0 exited\\nfile diff.patch -1\\n'",
    "a file cut short": "printf 'ended 0 exited\\nfile diff.patch 1000\\nabc'",
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_on_the_handout_stream_neither_crash_nor_escape(lab: Lab, lie: str) -> None:
    before = set(lab.folder.parent.iterdir())
    script = f"echo honest >honest.txt; {LIES[lie]} >{SUPERVISOR_FD}; exit 3"
    ran = lab.run(script, timeout_s=10.0)
    assert ran.result.exit_code in (None, 0, 3)
    assert lab.tree_after(ran.patch) == {**TREE, "honest.txt": b"honest\n"}
    assert set(lab.folder.parent.iterdir()) == before
    assert not Path("/tmp/escaped").exists()


def test_a_fork_bomb_is_bounded(boxed: Lab) -> None:
    if boxed.kind is Kind.USER and os.getuid() == 0:
        pytest.skip("the kernel does not hold root to a limit of processes; as root each box has a user of its own")
    code = """
import os, time
made = 0
try:
    while made < 500:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
except OSError:
    pass
print("made", made, flush=True)
"""
    ran = boxed.run('exec python3 -c "$CODE"', env={"CODE": code}, limits=Limits(pids=64), timeout_s=30.0)
    assert ran.result.exit_code == 0
    assert 8 < int(ran.log.split()[1]) <= 64


CONNECT = "import socket; socket.create_connection(('127.0.0.1', {port}), 3).sendall(b'x'); print('reached')"


@pytest.fixture
def port() -> Iterator[int]:
    """A service on this machine's own loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_without_network_there_is_no_route_out_and_no_service_of_the_host(boxed: Lab, port: int) -> None:
    script = f'cat /proc/net/route; python3 -c "{CONNECT.format(port=port)}"; ls /sys/class/net 2>/dev/null; true'
    log = boxed.run(script, network="none").log.decode()
    assert "reached" not in log
    assert "ConnectionRefusedError" in log or "unreachable" in log
    assert len(log.partition("Traceback")[0].splitlines()) == 1, "only the heading: no routes"


def test_with_an_open_network_services_can_be_reached(lab: Lab, port: int) -> None:
    if lab.kind is Kind.DOCKER:
        pytest.skip("a container's loopback is its own, whatever its network")
    assert b"reached" in lab.run(f'python3 -c "{CONNECT.format(port=port)}"', network="open").log


def test_a_box_does_not_see_the_hosts_files_and_processes(boxed: Lab, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    ran = boxed.run(f"cat {secret} /etc/shadow {Path.home()}/.* ; ls /proc | grep -c '^[0-9]'")
    assert b"of the host" not in ran.log
    assert b"root:" not in ran.log
    assert int(ran.log.split()[-1]) < 15


# --- many at once, cancel, free, reap ----------------------------------------------------------------------------


def test_many_jobs_at_once_do_not_mix(lab: Lab) -> None:
    def one(number: int) -> tuple[bytes, bytes]:
        ran = lab.run(f"echo out {number}; echo {number} >number.txt; sleep 0.2; echo {number} >$ROLLOUTS_OUT/notes.md")
        assert ran.files["notes.md"] == f"{number}\n".encode()
        return ran.log, lab.tree_after(ran.patch)["number.txt"]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(one, range(8)))
    assert results == [(f"out {n}\n".encode(), f"{n}\n".encode()) for n in range(8)]


def test_cancel_ends_running_jobs_soon_and_refuses_later_ones(own_lab: Lab, token: str) -> None:
    script = f"echo part >partial; {STUBBORN} trap '' TERM; echo started; while :; do sleep 0.05; done"
    running = [own_lab.start(script, env={"TOKEN": token}) for _ in range(3)]
    for job in running:
        job.sink.wait_for(b"up\n", 3)
    assert len(processes_with(token)) >= 9
    own_lab.backend.cancel()
    for job in running:
        ran = own_lab.ran(job)
        assert (ran.result.ended, ran.result.exit_code) == (Ended.CANCELLED, None)
        assert own_lab.tree_after(ran.patch) == {**TREE, "partial": b"part\n"}
    with pytest.raises(JobCancelled):
        own_lab.backend.run(own_lab.job("true"), Collector())
    own_lab.backend.close()
    wait_until(lambda: not processes_with(token), "all children are dead")
    assert not any(own_lab.is_left(job.job) for job in running)


TIDY = "trap 'echo tidy >tidy.txt; echo noted >$ROLLOUTS_OUT/notes.md; exit 0' TERM"


def test_a_cancelled_job_gets_the_grace_to_clean_up_and_hands_everything_out(own_lab: Lab) -> None:
    running = own_lab.start(f"{TIDY}; echo started; while :; do sleep 0.05; done")
    own_lab.backend.cancel()
    ran = own_lab.ran(running)
    assert (ran.result.ended, ran.result.exit_code) == (Ended.CANCELLED, None)
    assert ran.files["notes.md"] == b"noted\n"
    assert own_lab.tree_after(ran.patch) == {**TREE, "tidy.txt": b"tidy\n"}
    assert ("diff.patch" in ran.result.outputs) == (own_lab.kind is Kind.DOCKER), "made where it always is"


def test_a_job_that_ends_by_itself_just_before_it_is_asked_to_counts_as_what_it_is(own_lab: Lab) -> None:
    """It exits while the supervisor is stopped, so that the request and its end are seen together."""
    script = f"{FREEZE} echo started >&2; echo x >x; exit 3"
    running = own_lab.start(script)
    own_lab.backend.cancel()
    ran = own_lab.ran(running)
    assert (ran.result.ended, ran.result.exit_code) == (Ended.EXITED, 3)
    assert own_lab.tree_after(ran.patch) == {**TREE, "x": b"x\n"}


def test_a_box_that_does_not_do_as_it_is_asked_is_killed_and_its_patch_made_outside(
    own_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "STOP_LIMIT_S", 1.0)
    running = own_lab.start("echo x >x; kill -s STOP $PPID; echo started; sleep 60")
    own_lab.backend.cancel()
    ran = own_lab.ran(running)
    assert (ran.result.ended, ran.result.exit_code) == (Ended.CANCELLED, None)
    assert "it did not end within 1 s of being asked to" in ran.result.notes
    assert own_lab.tree_after(ran.patch) == {**TREE, "x": b"x\n"}


def test_a_job_of_which_no_patch_is_wanted_is_not_waited_for(own_lab: Lab) -> None:
    running = own_lab.start("trap '' TERM; echo started; while :; do sleep 0.05; done", capture=False)
    own_lab.backend.cancel()
    result = running.end()
    result.free()
    assert result.ended is Ended.CANCELLED
    assert "it was ended: everything stops" in result.notes


def test_kill_ends_all_boxes_of_this_process_at_once_and_no_others(own_lab: Lab, token: str, tmp_path: Path) -> None:
    script = f"{STUBBORN} trap '' TERM; echo started; while :; do sleep 0.05; done"
    running = [own_lab.start(script, env={"TOKEN": token}) for _ in range(2)]
    for job in running:
        job.sink.wait_for(b"up\n", 3)
    other_token = token[::-1]
    other = start_holder(own_lab.kind, tmp_path / "other", other_token)
    try:
        own_lab.backend.kill()
        wait_until(lambda: not any(own_lab.is_left(job.job) for job in running), "the boxes are gone")
        wait_until(lambda: not processes_with(token), "all children are dead")
        assert set(processes_with(other_token)) - {other.pid}, "another process's box is left alone"
    finally:
        other.kill()
        other.communicate(timeout=PATIENCE_S)
        own_lab.backend.reap()
    for job in running:
        with contextlib.suppress(SandboxFailed, JobCancelled):  # it is gone with all it had: either is fine
            job.end().free()
    with pytest.raises(JobCancelled):
        own_lab.backend.run(own_lab.job("true"), Collector())


def test_a_box_stays_until_it_is_freed_and_close_waits_for_that(own_lab: Lab) -> None:
    job = own_lab.job("echo x >x")
    own_lab.backend.prepare(job.image, Collector())
    result = own_lab.backend.run(job, Collector())
    assert own_lab.is_left(job)
    result.free()
    own_lab.backend.close()
    assert not own_lab.is_left(job)


def test_a_box_that_failed_is_given_back_too(own_lab: Lab) -> None:
    job = own_lab.job("true", image=replace(own_lab.image, subdir="missing"))
    with pytest.raises(SandboxFailed, match="cannot enter"):
        own_lab.run_job(job)
    own_lab.backend.close()
    assert not own_lab.is_left(job)


BUSY = "setsid sh -c 'while :; do sleep 0.1; done' $0 & wait"
HANDS_OUT = 'sleep 1; head -c 5000000 /dev/zero >"$ROLLOUTS_OUT/notes.md"; exit 0'
"""More than any pipe holds, so that the supervisor waits for someone to read it."""


@pytest.mark.parametrize("doing", [BUSY, HANDS_OUT], ids=["busy", "handing out"])
def test_a_box_ends_by_itself_when_its_owner_cannot_end_it(lab: Lab, token: str, tmp_path: Path, doing: str) -> None:
    if lab.kind is Kind.PLAIN and doing is BUSY:
        doing = "sleep 1000"  # what leaves its session cannot be found without walls
    other = start_holder(lab.kind, tmp_path / "other", token, doing, ttl_s=2.0)
    try:
        other.send_signal(signal.SIGSTOP)
        wait_until(lambda: not set(processes_with(token)) - {other.pid}, "the box has ended by itself")
    finally:
        other.kill()
        other.communicate(timeout=PATIENCE_S)
        lab.backend.reap()


def test_reap_removes_boxes_of_dead_owners_and_no_others(own_lab: Lab, token: str, tmp_path: Path) -> None:
    ours = own_lab.start("echo started; sleep 60")
    other = start_holder(own_lab.kind, tmp_path / "other", token)
    try:
        assert not any(token in box for box in own_lab.backend.reap()), "its owner lives"
        assert processes_with(token)
    finally:
        other.kill()
        other.communicate(timeout=PATIENCE_S)
    would = own_lab.backend.reap(dry_run=True)
    reaped = own_lab.backend.reap()
    assert not [box for box in (*would, *reaped) if ours.job.job_id in box]
    wait_until(lambda: not boxes_of(own_lab.kind, token), "nothing of its box is left, whoever removed it")
    wait_until(lambda: not [pid for pid in processes_with(token) if pid != os.getpid()], "the dead owner's box is gone")
    assert own_lab.is_left(ours.job)
    own_lab.backend.cancel()
    ours.end().free()


def test_the_same_image_asked_for_by_eight_threads_is_prepared_once(own_lab: Lab, token: str) -> None:
    files = {"repo/unique": token.encode()}
    image = make_image(own_lab.folder / "unique", files=files, cache_dir=own_lab.folder / "cache")
    said, together = Collector(), threading.Barrier(8)

    def prepare(_: int) -> None:
        together.wait()
        own_lab.backend.prepare(image, said)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(prepare, range(8)))
    assert own_lab.backend.is_prepared(image)
    assert bytes(said.data).count(b"building rollouts/task") == (1 if own_lab.kind is Kind.DOCKER else 0)
    ran = own_lab.run_job(own_lab.job("cat unique", image=image))
    own_lab.backend.close()
    forget_image(own_lab.backend, image)
    assert ran.log == token.encode()


def boxes_of(kind: Kind, token: str) -> list[str]:
    """What is left of a holder's box."""
    if kind is Kind.DOCKER:
        return containers_of(f"run-{token}")
    return [str(box) for box in (Path(tempfile.gettempdir()) / f"rollouts-{os.getuid()}").glob(f"{token}-*")]


def test_a_local_box_whose_process_died_while_making_or_removing_it_is_removed(tmp_path: Path) -> None:
    backend = LocalBackend(DockerSettings(), tmp_path / "cache")
    backend._boxes = tmp_path / "boxes"
    dead = replace(Owner.current(), start_time="0").encode()
    nobody, me = 9_999_999, os.getpid()
    left = {"run-0.1-1": {}, f".new-{nobody}-a": {}, f".new-{nobody}-b": {"owner": "["}, f".new-{me}-old": {}}
    left[f".new-{me}-dead"] = {"owner": dead}
    left["run-1.1-1"] = {"owner": dead, "app": "x"}
    kept: dict[str, dict[str, str]] = {f".new-{me}-young": {}, "notes": {}}
    kept["run-2.1-1"] = {"owner": Owner.current().encode()}
    for name, files in {**left, **kept}.items():
        write_tree(backend._boxes / name, {file: text.encode() for file, text in files.items()})
        (backend._boxes / name).mkdir(parents=True, exist_ok=True)
        if name in (f".new-{me}-old", "notes"):
            os.utime(backend._boxes / name, (1, 1))
    expected = sorted(str(backend._boxes / name) for name in left)
    assert backend.reap(dry_run=True) == expected
    assert {box.name for box in backend._boxes.iterdir()} == {*left, *kept}
    assert backend.reap() == expected
    assert {box.name for box in backend._boxes.iterdir()} == set(kept)
    backend.close()


def test_a_box_of_the_same_name_that_another_made_is_left_alone(tmp_path: Path) -> None:
    """Two containers that share their /tmp may have processes of equal numbers."""
    backend = LocalBackend(DockerSettings(), tmp_path / "cache", Isolation.NONE)
    backend._boxes = tmp_path / "boxes"
    image = make_image(tmp_path / "task")
    job = Job("run-0.1", "run-0", "b", image, ("true",), {}, Limits(), 10.0, "none", tmp_path / "out")
    theirs = backend._box(job.job_id)
    write_tree(theirs, {"owner": b"another", "app/repo/work.txt": b"theirs"})
    with pytest.raises(SandboxFailed, match="cannot make a sandbox"):
        backend.run(job, lambda data: None)
    backend.close()  # waits for what is being removed
    assert (theirs / "app/repo/work.txt").read_bytes() == b"theirs"
    assert list(backend._boxes.iterdir()) == [theirs]


def test_boxes_behind_a_link_are_not_ours(tmp_path: Path) -> None:
    """The folder's name can be guessed by whoever shares the machine."""
    backend = LocalBackend(DockerSettings(), tmp_path / "cache")
    backend._boxes = tmp_path / "boxes"
    victim = tmp_path / "elsewhere" / "photos-2019"
    victim.mkdir(parents=True)
    backend._boxes.symlink_to(victim.parent)
    assert backend.reap() == []
    assert victim.exists()
    backend.close()
