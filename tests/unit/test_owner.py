"""Owners: only what is surely dead is dead."""

import json
import os
import subprocess
from dataclasses import replace

import pytest

from rollouts.owner import Owner


def test_this_process_is_alive() -> None:
    assert not Owner.current().is_dead()
    assert Owner.current().pid == os.getpid()


def test_a_process_that_ended_is_dead() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert replace(Owner.current(), pid=child.pid).is_dead()


def test_another_process_of_the_same_pid_does_not_count() -> None:
    assert replace(Owner.current(), start_time="1").is_dead()


def test_a_process_of_an_earlier_boot_is_dead() -> None:
    assert replace(Owner.current(), boot_id="an earlier one").is_dead()


def test_a_process_on_another_host_is_never_taken_for_dead() -> None:
    assert not Owner("elsewhere", "another boot", 2**22 + 1, "1", Owner.current().pid_namespace).is_dead()


def test_a_process_whose_pids_cannot_be_seen_is_never_taken_for_dead() -> None:
    """A pid of another namespace, as in a container beside us, means nothing here."""
    elsewhere = replace(Owner.current(), pid=2**22 + 1, start_time="1", pid_namespace="pid:[1]")
    assert not elsewhere.is_dead()
    assert replace(elsewhere, boot_id="an earlier one").is_dead()


def test_an_owner_is_described_for_people() -> None:
    owner = replace(Owner.current(), host="myhost/0123456789abcdef", pid=123)
    assert owner.describe() == "process 123 on myhost"


def test_an_owner_survives_its_label() -> None:
    assert Owner.decode(Owner.current().encode()) == Owner.current()


@pytest.mark.parametrize(
    "label",
    [
        "",
        "x",
        "{}",
        "5",
        "null",
        "[]",
        '["a", "b", "c", "d"]',
        '["a", "b", "c", "d", "e"]',
        '["a", "b", 1, "d"]',
        '["a"]',
        '["a", "b", Infinity, "d", "e"]',
        '["a", "b", null, "", ""]',
    ],
)
def test_a_label_that_is_not_ours_has_no_owner(label: str) -> None:
    assert Owner.decode(label) is None


def test_a_label_is_one_line_of_json() -> None:
    label = Owner.current().encode()
    assert "\n" not in label
    assert len(json.loads(label)) == 5
