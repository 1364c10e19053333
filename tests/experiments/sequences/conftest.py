"""Where decoded images go while testing: a folder of the test's own; for real data, which are slow, a lasting one."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def cache_of_the_test(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = request.node.get_closest_marker("data") is not None
    folder = request.config.cache.mkdir("softmask") if real else tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("SOFTMASK_CACHE", str(folder))
