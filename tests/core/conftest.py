"""One thread and repeatable draws: the results of these tests depend on nothing but the code."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("core", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("core")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
