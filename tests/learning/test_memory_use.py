"""The peak of a process, from a moment on."""

from __future__ import annotations

import sys

import pytest
import torch

from softmask.learning.device import forget_peak, peak_memory

MEGABYTE = 1_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can forget a peak")
def test_what_was_held_before_does_not_count() -> None:
    large = torch.ones(50 * MEGABYTE)
    del large
    before = peak_memory()
    forget_peak()
    after = peak_memory()
    assert before is not None
    assert after is not None
    assert after < before - 100 * MEGABYTE
    held = torch.ones(50 * MEGABYTE)
    now = peak_memory()
    assert now is not None
    assert now > after + 150 * MEGABYTE
    assert len(held) == 50 * MEGABYTE
