"""GPM+BECAME: GPM where nothing is to be merged."""

import pytest
import torch

from softmask.learning import merging
from tests.methods.comparing import learned, same_network


def test_the_first_task_is_gpms_and_a_share_of_0_gives_its_solution(monkeypatch: pytest.MonkeyPatch) -> None:
    assert same_network(learned("gpm-became", tasks=1), learned("gpm", tasks=1))
    monkeypatch.setattr(merging, "merged_share", lambda *given: 0.0)
    merged, gpm = learned("gpm-became", tasks=2), learned("gpm", tasks=2)
    assert same_network(merged, gpm)
    assert all(torch.equal(used, gpm.mask.used[name]) for name, used in merged.mask.used.items())


def test_the_share_is_between_the_two_solutions() -> None:
    method = learned("gpm-became", tasks=2)
    assert 0 < method.share < 1
    assert not same_network(method, learned("gpm", tasks=2))
