"""Questions to a model behind a Chat Completions API: bounded in time, tries and size, and given up at once on a stop.

A reader would get wrong that httpx's timeouts bound a request: each of them bounds one wait for some bytes. So a
request runs in a thread of its own, which is left to itself when the time is over.
"""

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from ipaddress import ip_address
from typing import Any, TypeVar
from urllib.parse import urlsplit

from rollouts.config import JudgeSettings
from rollouts.gate import Gate, Question, TooBusy, gate_of
from rollouts.schedule import backoff_s

ANSWER_LIMIT_BYTES = 4 * 1024 * 1024
RETRY_AFTER_CAP_S = 60.0
_PASSING = (408, 409, 425, 429)
"""Statuses that pass by themselves, as do all from 500 on."""
_BUSY = (429, 503, 529)
"""With these a server speaks of all questions, not of one."""
_NOT_UNDERSTOOD = (400, 422)
"""What servers answer to options that they do not know."""

Answer = TypeVar("Answer")


class NoAnswer(Exception):
    """Why there is no answer, for people. May hold what the server said, and so whatever it was sent."""


class _TryAgain(Exception):
    """Trouble that may pass."""

    def __init__(self, reason: str, after_s: float = 0.0, busy: bool = False) -> None:
        super().__init__(reason)
        self.after_s, self.busy = after_s, busy


class _NotUnderstood(Exception):
    """The server refuses the request as it stands."""


class Chat:
    """One model at one address. Safe to use from many threads."""

    def __init__(
        self,
        settings: JudgeSettings,
        key: str,
        stopped: threading.Event,
        backoff: Callable[[int], float] = backoff_s,
        gate: Gate | None = None,
    ) -> None:
        """`gate` is the one that all share who ask the same server, unless told otherwise."""
        self._settings, self._key, self._stopped, self._backoff = settings, key, stopped, backoff
        self._url = f"{settings.base_url.rstrip('/')}/chat/completions"
        self._gate = gate or gate_of(urlsplit(self._url).netloc)

    def ask(self, system: str, user: str, schema: Mapping[str, Any], read: Callable[[str], Answer]) -> Answer:
        """What `read` makes of the answer's text; it raises ValueError for what is none, and the model is asked again.

        Raises `NoAnswer` for everything that goes wrong.
        """
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        body = {"model": self._settings.model, "messages": messages, "temperature": 0, "response_format": _form(schema)}
        with self._gate.question(self._stopped) as question:
            return self._ask(body, read, question)

    def _ask(self, body: dict[str, Any], read: Callable[[str], Answer], question: Question) -> Answer:
        failures, reason = 0, ""
        while True:
            try:
                question.wait()
                return self._try(body, read, question)
            except _NotUnderstood as exc:
                body = _simpler(body, str(exc))
            except _TryAgain as exc:
                failures, reason = failures + 1, str(exc)
                wait_s = max(exc.after_s, self._backoff(failures))
                if exc.busy:
                    question.refused(wait_s)
                if failures > self._settings.retries:
                    raise NoAnswer(f"after {failures} tries: {exc}" if failures > 1 else reason) from None
                if not exc.busy:
                    self._stopped.wait(wait_s)
            except TooBusy as exc:
                tried = f"; after {failures} {'try' if failures == 1 else 'tries'}: {reason}" if failures else ""
                raise NoAnswer(f"{exc}{tried}") from None

    def _try(self, body: Mapping[str, Any], read: Callable[[str], Answer], question: Question) -> Answer:
        content = json.dumps(body).encode()
        status, headers, said = self._within_limits(lambda deadline: self._post(content, deadline))
        if status not in _BUSY:
            question.answered()
        if 200 <= status < 300:
            try:
                return read(_text_of(said))
            except (ValueError, RecursionError) as exc:
                raise _TryAgain(f"{self._url}: the answer is no judgement: {exc}") from None
        told = f"{self._url}: status {status}{self._advice(status)}: {_reason_in(said)}"
        if status in _NOT_UNDERSTOOD:
            raise _NotUnderstood(told)
        if status in _PASSING or status >= 500:
            raise _TryAgain(told, retry_after_s(headers.get("retry-after", "")), status in _BUSY)
        raise NoAnswer(told)

    def _advice(self, status: int) -> str:
        if 300 <= status < 400:
            return " (redirects are not followed; base_url must name the final address)"
        if status in (401, 403):
            name = self._settings.api_key_env
            return f" (is the key in {name} right?)" if name else " (no key was sent: api_key_env is empty)"
        return ""

    def _post(self, content: bytes, deadline: float) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body of one exchange. Redirects are not followed: the key is for this address alone."""
        import httpx  # here, so that only who asks a model pays for it

        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        direct = {f"all://{urlsplit(self._url).netloc}": None} if _is_loopback(self._url) else {}
        try:
            with (
                httpx.Client(verify=_certificates(), timeout=self._settings.timeout_s, mounts=direct) as client,
                client.stream("POST", self._url, content=content, headers=headers, follow_redirects=False) as response,
            ):
                return response.status_code, response.headers, self._read(response.iter_bytes(), deadline)
        except httpx.HTTPError as exc:
            raise _TryAgain(f"{self._url}: {str(exc) or type(exc).__name__}") from None
        except (httpx.InvalidURL, OSError, ValueError, ImportError) as exc:  # proxies, certificates of the environment
            raise NoAnswer(f"{self._url}: no connection can be set up: {exc}") from None

    def _read(self, parts: Iterable[bytes], deadline: float) -> bytes:
        said = bytearray()
        for part in parts:
            said += part
            if len(said) > ANSWER_LIMIT_BYTES:
                raise _TryAgain(f"{self._url}: an answer of more than {ANSWER_LIMIT_BYTES:,} bytes")
            self._check(deadline)  # also here: the thread must end though nobody waits for it any more
        return bytes(said)

    def _within_limits(self, call: Callable[[float], Answer]) -> Answer:
        """What `call` returns, if it does so in time and before a stop."""
        deadline = time.monotonic() + self._settings.timeout_s
        self._check(deadline)
        ended: Future[Answer] = Future()
        threading.Thread(target=_keep_outcome, args=(ended, call, deadline), name="judge-request", daemon=True).start()
        while not wait([ended], timeout=0.05).done:
            self._check(deadline)
        return ended.result()

    def _check(self, deadline: float) -> None:
        if self._stopped.is_set():
            raise NoAnswer("stopped before there was an answer")
        if time.monotonic() > deadline:
            raise _TryAgain(f"{self._url}: no answer within {self._settings.timeout_s:g} s")


@cache
def _certificates() -> ssl.SSLContext:
    """Whom to trust. Reading them takes longer than all the rest of a request on this side."""
    import httpx

    return httpx.create_ssl_context()


def _keep_outcome(ended: Future[Answer], call: Callable[[float], Answer], deadline: float) -> None:
    try:
        ended.set_result(call(deadline))
    except BaseException as exc:  # noqa: BLE001 - raised again in the thread that waits
        ended.set_exception(exc)


def _form(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def _simpler(body: Mapping[str, Any], refusal: str) -> dict[str, Any]:
    """The request without what the server may have refused. Many know no schemas, and some models no temperature."""
    form = body.get("response_format")
    if "temperature" in body and "temperature" in refusal.lower():
        return {name: value for name, value in body.items() if name != "temperature"}
    if form is None:
        raise NoAnswer(refusal) from None
    if form["type"] == "json_schema":
        return {**body, "response_format": {"type": "json_object"}}
    return {name: value for name, value in body.items() if name != "response_format"}


def _text_of(answer: bytes) -> str:
    """What the model wrote; ValueError when that is not in there."""
    try:
        message = json.loads(answer)["choices"][0]["message"]
        text = message["content"] or message.get("refusal")
    except (LookupError, TypeError, AttributeError):
        raise ValueError("it has no text") from None
    if not isinstance(text, str):
        raise ValueError("it has no text")
    return text


def _reason_in(said: bytes) -> str:
    """What a server gives as the reason of a refusal, in the form that most use, else all that it said."""
    try:
        reason = json.loads(said)["error"]["message"]
    except (ValueError, LookupError, TypeError, RecursionError):
        reason = None
    return (reason if isinstance(reason, str) else said.decode("utf-8", "replace")) or "no reason given"


def retry_after_s(header: str, now: datetime | None = None) -> float:
    """How long a server asks to wait, in seconds or until a date; 0 when it does not, and never very long."""
    try:
        asked = float(header)
    except ValueError:
        try:
            until = parsedate_to_datetime(header)
        except (ValueError, OverflowError):
            return 0.0
        asked = ((until if until.tzinfo else until.replace(tzinfo=UTC)) - (now or datetime.now(UTC))).total_seconds()
    return min(RETRY_AFTER_CAP_S, max(0.0, asked))  # in this order, so that NaN is 0


def _is_loopback(url: str) -> bool:
    """Whether a server is on this machine, where no proxy of the environment leads."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
