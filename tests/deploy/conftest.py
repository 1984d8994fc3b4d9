"""Fixtures shared by the tests of deploy/."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy import compose, fortnight, tsdb
from tests.deploy import image as images
from tests.deploy.image import Builder, Debian, Image
from tests.deploy.kustomize import ON_A_VOLUME, OVERLAYS, Objects, built
from tests.deploy.prometheus import Prometheus, require_prometheus
from tests.postgres.server import PostgresServer


@pytest.fixture(scope="session")
def scripted_day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A running Prometheus with the day of scripted_day.py, and what its rules record of it.

    Its data lie between `incidents.START_S` and `incidents.END_S`; it scrapes nothing.
    """
    require_prometheus()
    folder = tmp_path_factory.mktemp("day") / "data"
    tsdb.write(folder)
    with Prometheus(data=folder) as server:
        yield server


@pytest.fixture(scope="session")
def two_weeks(
    scripted_day: Prometheus, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """The scripted day with the days around it (fortnight.py)."""
    folder = tmp_path_factory.mktemp("fortnight") / "data"
    fortnight.write(folder, scripted_day)
    with Prometheus(data=folder) as running:
        yield running


@pytest.fixture(scope="session")
def debian() -> Debian:
    """Packages of the release that the image is made of."""
    images.require_builder()
    return images.bootstrap()


@pytest.fixture(scope="session")
def builder() -> Iterator[Builder]:
    """Build images; what it keeps lasts as long as the session."""
    images.require_builder()
    with tempfile.TemporaryDirectory(prefix="relay-") as folder:
        yield Builder(Path(folder))


@pytest.fixture(scope="session")
def image(debian: Debian, builder: Builder, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The relay's image."""
    base = builder.base(debian.archive, images.surroundings(tmp_path_factory.mktemp("host")))
    told = {"PYTHON": base, **images.ORIGIN}
    arguments = [f"--build-arg={name}={value}" for name, value in told.items()]
    return builder.image(builder.build(images.DOCKERFILE, *arguments))


@pytest.fixture(scope="session")
def document(debian: Debian) -> dict[str, Any]:
    """deploy/compose with all profiles, as Compose reads it."""
    return compose.read(debian.compose, profiles=["postgres"])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PostgresServer]:
    """A PostgreSQL server that asks all but the superuser for a password."""
    server = PostgresServer(tmp_path)
    server.create()
    (server.data / "pg_hba.conf").write_text(
        "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=OVERLAYS)
def objects(request: pytest.FixtureRequest) -> Objects:
    """Each overlay of deploy/kubernetes."""
    return built(OVERLAYS[request.param])


@pytest.fixture(params=ON_A_VOLUME)
def on_a_volume(request: pytest.FixtureRequest) -> Objects:
    """Each overlay whose store is a file."""
    return built(OVERLAYS[request.param])
