"""Both routines for products, whichever this processor prefers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from softmask.kernels import layer_groups, layers


def both_routines(request: pytest.FixtureRequest) -> Iterator[bool]:
    """A fixture's function: as if the processor preferred oneDNN, or did not."""
    wanted: bool = request.param
    if wanted and not layers.has_onednn():
        pytest.skip("this build of torch has no oneDNN")
    with pytest.MonkeyPatch.context() as patch:
        for module in (layers, layer_groups):
            patch.setattr(module, "prefers_onednn", lambda: wanted)
        yield wanted
