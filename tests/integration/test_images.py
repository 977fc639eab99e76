"""Images of a real engine: which may be removed, and what happens when one is removed that is still needed.

The engine is shared with other tests, so nothing is removed here but what a test built itself.
"""

import contextlib
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from rollouts.backends.base import BuiltImage
from rollouts.backends.docker import DockerBackend
from rollouts.backends.image_tree import BUILDING_LABEL, removable
from rollouts.config import DockerSettings
from rollouts.errors import ImageFailed
from tests.boxes import Kind, Lab, base_image, containers_of, make_image, wait_until

pytestmark = pytest.mark.docker


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """With an image that nobody has built before."""
    backend = DockerBackend(DockerSettings(base_image=base_image()), tmp_path / "cache")
    image = make_image(tmp_path / "task", files={"repo/unique": uuid.uuid4().bytes}, cache_dir=tmp_path / "cache")
    lab = Lab(Kind.DOCKER, backend, image, tmp_path)
    yield lab
    lab.close()
    for other in _removable(lab):
        other_backend(lab).remove_image(other)


def other_backend(lab: Lab) -> DockerBackend:
    """As another command has it, in the same data folder."""
    return DockerBackend(DockerSettings(base_image=base_image()), lab.folder / "cache")


def _removable(lab: Lab) -> list[BuiltImage]:
    """What another command would remove of this test's own."""
    assert isinstance(lab.backend, DockerBackend)
    own = {*lab.backend._images._tags.values()}
    with contextlib.closing(other_backend(lab)) as backend:
        return [image for image in backend.removable_images() if image.name in own]


def test_an_image_can_be_removed_when_neither_a_process_nor_a_container_uses_it(lab: Lab) -> None:
    assert isinstance(lab.backend, DockerBackend)
    lab.backend.prepare(lab.image, lambda data: None)
    assert _removable(lab) == [], "the next run needs it"
    job = lab.job("true")
    ended = lab.backend.run(job, lambda data: None)
    lab.backend._images.close()
    assert _removable(lab) == [], "its container is still there"
    ended.free()
    wait_until(lambda: not containers_of(job.run_id), "the container is gone")
    (image,) = _removable(lab)
    assert 0 < image.bytes < 5_000_000, "the base is not counted"
    with contextlib.closing(other_backend(lab)) as backend:
        assert backend.remove_image(image)
        assert backend.remove_image(image), "gone is gone"
    assert _removable(lab) == []


def test_the_engine_keeps_an_image_that_a_container_uses_by_now(lab: Lab) -> None:
    running = lab.start("echo started; sleep 60")
    assert isinstance(lab.backend, DockerBackend)
    assert not lab.backend.remove_image(BuiltImage(lab.backend._images.tag(lab.image), 0))
    lab.backend.cancel()
    running.end().free()


def test_an_image_that_someone_removed_is_built_again(lab: Lab) -> None:
    job = lab.job("true")
    assert lab.run_job(job).result.exit_code == 0
    wait_until(lambda: not containers_of(job.run_id), "its container is gone")
    assert isinstance(lab.backend, DockerBackend)
    assert lab.backend.remove_image(BuiltImage(lab.backend._images.tag(lab.image), 0))
    assert lab.run("cat README.md").log == b"hello\n"


def test_steps_of_a_build_that_was_given_up_are_found_and_removed(lab: Lab) -> None:
    image = make_image(lab.folder / "bad", install=f"exit 3 # {uuid.uuid4()}", cache_dir=lab.folder / "cache")
    with pytest.raises(ImageFailed):
        lab.backend.prepare(image, lambda data: None)
    tag = lab.backend._images._uses._tags[-1]  # type: ignore[attr-defined] # a DockerBackend

    def left(at: float) -> list[BuiltImage]:
        with contextlib.closing(docker.from_env()) as client:
            listed = client.api.images(all=True)
        own = {each["Id"] for each in listed if (each["Labels"] or {}).get(BUILDING_LABEL) == tag}
        return [each for each in removable(listed, [], [], at) if each.name in own]

    assert left(time.time()) == [], "it may be at work still"
    (step,) = left(time.time() + 7200)
    assert step.unfinished
    assert lab.backend.remove_image(step)
    assert left(time.time() + 7200) == []
