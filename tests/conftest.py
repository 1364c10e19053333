"""Shared by all tests: one thread, so that two test processes do not fight over two cores."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)
