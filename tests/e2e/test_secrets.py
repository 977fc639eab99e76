"""Canaries on every way out: nothing that is kept, printed or passed as an argument holds a secret, however coded."""

import base64
import contextlib
import http.server
import json
import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import quote

import docker
import pytest

from tests.boxes import ArgumentWatch
from tests.command_line import Project, Ran
from tests.model_server import Asked, Reply, completion, serve
from tests.samples import git, make_repository

CANARY = 'sk-canary/+"7Qz9 Xv3pLm8Rt5Wy1Kj4Hg6Fd2Sa0Nb-end'
JUDGE_CANARY = "sk-judge-canary-8Ub3Vc6Xz9Wq2Er5Ty1"
PASSWORD = "hunter2-canary-Zx8Cv7Bn6Mm5"

AGENT = r"""
import base64, binascii, json, os, sys, time, urllib.parse
key = os.environ["CANARY"]
out = sys.stdout.buffer
def tell(data): out.write(data + b"\n"); out.flush()
forms = [key.encode(), base64.b64encode(key.encode()), base64.b64encode(b"x" + key.encode()),
    base64.b64encode(b"xy" + key.encode()), base64.urlsafe_b64encode(key.encode()),
    base64.encodebytes(b"KEY=" * 9 + key.encode()), binascii.hexlify(key.encode()),
    urllib.parse.quote(key).encode(), urllib.parse.quote(key, safe="").encode(), json.dumps(key).encode()]
for form in forms:
    tell(b"form " + form)
    sys.stderr.buffer.write(b"error " + form + b"\n"); sys.stderr.flush()
out.write(key[:11].encode()); out.flush(); time.sleep(0.3); tell(key[11:].encode())
open("leak.txt", "wb").write(b"\n".join(forms) + b"\n")
open("made_" + key[10:].replace("/", "_").replace('"', "_").replace(" ", "_"), "w").write("by name\n")
open("hello.txt", "a").write(key + "\n")
# in parts, which only come together when the code is run
open("parts.py", "w").write(f"A, B = {key[:9]!r}, {key[9:]!r}\nprint(A + B)\n")
open(os.environ["ROLLOUTS_OUT"] + "/notes.md", "wb").write(b"\n".join(forms))
sys.exit(int(sys.argv[1]))
"""


def forms_of(secret: str) -> list[bytes]:
    """What must be found nowhere. Of base64 what does not depend on its neighbours."""
    plain = secret.encode()
    coded = [base64.b64encode(bytes(n) + plain)[4 : -4 - 4 * bool(n)] for n in range(3)]
    quoted = (quote(secret).encode(), quote(secret, safe="").encode(), json.dumps(secret)[1:-1].encode())
    return [
        plain,
        plain.hex().encode(),
        *coded,
        *(code.translate(bytes.maketrans(b"+/", b"-_")) for code in coded),
        *quoted,
    ]


def assert_free(project: Project, secret: str, *ran: Ran) -> None:
    """Neither files nor screens hold it, also not over the end of a line."""
    texts = {f"{name} of command {number}": text.encode() for number, one in enumerate(ran) for name, text in
             (("stdout", one.out), ("stderr", one.err))}  # fmt: skip
    for path in (path for path in (project.folder / "data").rglob("*") if path.is_file() and not path.is_symlink()):
        texts[str(path)] = path.read_bytes() + os.fsencode(path.name)
    assert len(texts) > 2
    for where, text in texts.items():
        joined = text.replace(b"\n+", b"\n").translate(None, b"\r\n")
        for form in forms_of(secret):
            assert form not in text, where
            assert form not in joined, where


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    rubrics = [{"id": "good", "criterion": "It is good."}, {"id": "told", "criterion": "It prints."}]
    meta = {"task_id": "greet", "lm": {"instructions": "x"}, "evaluation": {"rubrics": rubrics}}
    meta["evaluation"]["test_scripts"] = [  # type: ignore[index]
        {
            "path": "test_it.py",
            "rubric_id": "told",
            "content": "def test_it():\n    import parts\n    assert not parts.A\n",
        }
    ]
    project.task("greet", **{"tb_meta.json": json.dumps(meta), "repo/agent.py": AGENT})
    return project


def config(project: Project, judge: str, command: str = "python3 agent.py 0", extra: str = "") -> Path:
    return project.config(
        f'agent = "own"\nbackend = "local"\n[agents.own]\ncommand = "{command}"\nenv = ["CANARY"]\n{extra}'
        f'[judge]\nmodel = "wise"\nbase_url = "{judge}"\napi_key_env = "JUDGE_CANARY"\nretries = 0\n'
        '[[tasks]]\nprepared_dir = "tasks/greet"\n'
    )


def gossip(asked: Asked) -> Reply:
    """A judge that repeats the key it was given, and the patch."""
    key = asked.headers["authorization"]
    said = {"score": 0.5, "reasons": f"{key} {base64.b64encode(key.encode()).decode()}", "evidence": []}
    return completion(json.dumps(said))


ENV = {"CANARY": CANARY, "JUDGE_CANARY": JUDGE_CANARY}


@pytest.mark.parametrize("code", [0, 3])
def test_secrets_of_agents_and_judges_are_nowhere(code: int, project: Project) -> None:
    with serve(gossip) as server, ArgumentWatch(CANARY[:20]) as watch, ArgumentWatch(JUDGE_CANARY) as judged:
        file = config(project, server.address, f"python3 agent.py {code}")
        ran = project("run", file, "-vv", "--eval", env=ENV)
        again = project("eval", "bench", "--force", "-vv", env=ENV)
        tables = [project(*words) for words in (("summarize", "bench"), ("list", "--json"))]
        asked = [json.dumps(one.body) for one in server.asked]
    (result,) = project.manifest()["results"]
    assert result["launch_rc"] == code
    assert "[secret]" in ran.err
    folder = project.folder / result["run_dir"]
    for name in ("logs/agent.log", "artifacts/notes.md", "artifacts/diff.patch", "logs/eval.log", "scoring_results.md"):
        assert (folder / name).exists(), name
    assert b"[secret]" in project.patch(result)
    assert json.loads((folder / "evaluation_results.json").read_text())["total_score"] is not None
    assert b"[secret]" in (folder / "logs/eval.log").read_bytes()
    for secret in (CANARY, JUDGE_CANARY):
        assert_free(project, secret, ran, again, *tables)
        assert not any(form.decode() in text for form in forms_of(secret) for text in asked)
    assert (watch.seen, judged.seen) == ([], [])
    assert watch.looks


def test_secrets_in_what_a_judges_server_refuses_are_taken_out(project: Project) -> None:
    def refuses(asked: Asked) -> Reply:
        return Reply(json.dumps({"error": {"message": f"bad key {asked.headers['authorization']}"}}).encode(), 401)

    with serve(refuses) as server:
        ran = project("run", config(project, server.address), "-v", "--eval", env=ENV)
    assert (
        "bad key" in (project.folder / project.manifest()["results"][0]["run_dir"] / "scoring_results.md").read_text()
    )
    assert_free(project, JUDGE_CANARY, ran)


@pytest.mark.docker
def test_secrets_in_the_output_of_a_build_are_taken_out(project: Project) -> None:
    """The value stands in the benchmark file itself here, which is how a build can come to know it."""
    install = json.dumps("echo building with $0 " + CANARY.replace('"', '\\"') + "; exit 9")
    for options in (("-vv",), ()):
        file = config(project, "http://127.0.0.1:9", extra=f"install = {install}\n")
        ran = project("run", file, "--backend", "docker", *options, env=ENV)
        assert ran.code == 4
        assert "does not build" in ran.err
        assert "[secret]" in ran.err
        assert any(b"[secret]" in log.read_bytes() for log in (project.folder / "data/cache/builds").iterdir())
        assert_free(project, CANARY, ran)


@pytest.mark.docker
def test_secrets_are_in_no_image_and_on_no_label(project: Project) -> None:
    file = config(project, "http://127.0.0.1:9")
    ran = project("run", file, "--backend", "docker", "-vv", env=ENV)
    assert ran.code == 0, ran.err
    assert_free(project, CANARY, ran)
    with contextlib.closing(docker.from_env()) as client:
        for image in client.images.list(filters={"label": "rollouts.image"}):
            with contextlib.suppress(docker.errors.ImageNotFound):  # another test's, gone by now
                told = json.dumps([image.attrs, image.history()], default=str)
                assert CANARY[12:40] not in told


class _Guarded(http.server.SimpleHTTPRequestHandler):
    """A repository behind a password, as plain files."""

    def do_GET(self) -> None:
        wanted = "Basic " + base64.b64encode(f"me:{PASSWORD}@x".encode()).decode()
        if self.headers.get("Authorization") == wanted:
            super().do_GET()
            return
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="x"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        """Say nothing on stderr."""


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[str]:
    make_repository(tmp_path / "origin", {"hello.txt": "hello\n"})
    git("clone", "-q", "--bare", "origin", "served.git", cwd=tmp_path)
    git("update-server-info", cwd=tmp_path / "served.git")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Guarded, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}/served.git"
        server.shutdown()


@pytest.mark.parametrize("password", [f"{PASSWORD}%40x", f"{PASSWORD}@x", f"{PASSWORD}-wrong"])
def test_secrets_in_the_address_of_a_repository_are_used_and_kept_nowhere(
    password: str, guarded: str, project: Project
) -> None:
    meta = {"task_id": "far", "lm": {"instructions": "x"}, "repo": {"git_url": f"http://me:{password}@{guarded}"}}
    (project.folder / "tasks/far").mkdir()
    (project.folder / "tasks/far/tb_meta.json").write_text(json.dumps(meta))
    file = project.config('agent = "nop"\nbackend = "local"\n[[tasks]]\nprepared_dir = "tasks/far"\n')
    proxies = dict.fromkeys(("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"), "")
    with ArgumentWatch(PASSWORD) as watch:
        first = project("run", file, "-vv", env=proxies)
        second = project("run", file, env=proxies)
    expected = 4 if "wrong" in password else 0
    assert (first.code, second.code) == (expected, expected), first.err
    assert (f"cannot fetch http://{guarded}" in first.err) is bool(expected)
    assert_free(project, PASSWORD, first, second)
    assert watch.seen == []


def test_secrets_in_a_mistaken_address_are_not_shown(project: Project) -> None:
    meta = {"task_id": "far", "lm": {"instructions": "x"}, "repo": f"https://me:{PASSWORD}@host/x.git"}
    (project.folder / "tasks/far").mkdir()
    (project.folder / "tasks/far/tb_meta.json").write_text(json.dumps(meta))
    ran = project("validate", "tasks/far")
    assert ran.code == 2
    assert 'expected a table, got "https://host/x.git"' in ran.err
    assert PASSWORD not in ran.out + ran.err
