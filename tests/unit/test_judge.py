"""The judge's own sums, without a server: how long to wait, what a text says, what the model is shown."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.scoring.chat import RETRY_AFTER_CAP_S, retry_after_s
from rollouts.scoring.judge import PATCH_LIMIT, make_prompt, read_judgement
from rollouts.tasks import Rubric

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("", 0),
        ("5", 5),
        (" 1.5 ", 1.5),
        ("-3", 0),
        ("86400", RETRY_AFTER_CAP_S),
        ("inf", RETRY_AFTER_CAP_S),
        ("nan", 0),
        ("9" * 5000, RETRY_AFTER_CAP_S),
        ("Thu, 01 Jan 2026 12:00:20 GMT", 20),
        ("Thu, 01 Jan 2026 12:00:20 -0000", 20),
        ("Thu, 01 Jan 2026 13:00:20 +0100", 20),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", RETRY_AFTER_CAP_S),
        ("Thu, 99 Jan 2026 12:00:20 GMT", 0),
        ("soon", 0),
    ],
)
def test_a_server_may_ask_to_wait_in_seconds_or_until_a_date(header: str, seconds: float) -> None:
    assert retry_after_s(header, NOW) == seconds


@given(st.text(max_size=60) | st.from_regex(r"[A-Z][a-z]{2}, \d{1,9} Jan \d{1,9} \d{1,3}:\d\d:\d\d [+-]\d{1,9}"))
def test_no_header_makes_for_a_wait_without_end(header: str) -> None:
    assert 0 <= retry_after_s(header, NOW) <= RETRY_AFTER_CAP_S


@given(st.text(max_size=300))
def test_a_text_is_a_judgement_or_a_value_error(text: str) -> None:
    try:
        found = read_judgement(text)
    except ValueError:
        return
    assert found.score is not None


@given(st.floats(0, 1), st.text(), st.lists(st.text()))
def test_every_judgement_in_json_is_read_as_it_is(score: float, reasons: str, evidence: list[str]) -> None:
    found = read_judgement(json.dumps({"score": score, "reasons": reasons, "evidence": evidence}))
    assert (found.score, found.reasons, list(found.evidence)) == (score, reasons, evidence)


@pytest.mark.parametrize("size", [PATCH_LIMIT, PATCH_LIMIT + 1])
def test_a_patch_is_shown_whole_up_to_the_limit(size: int) -> None:
    _, user = make_prompt("", Rubric(id="r"), "x" * size)
    assert ("left out here" in user) == (size > PATCH_LIMIT)
    assert user.count("x") == PATCH_LIMIT


def test_a_rubric_without_a_criterion_is_judged_by_its_name() -> None:
    system, user = make_prompt("Do it.", Rubric(id="clear_names"), "+x")
    assert "\nclear_names\n" in user
    assert "{mark}" not in system
