"""SPG without soft-masking of the head."""

import torch

from softmask.methods.spg_no_smh import SPGWithoutMaskedHead
from tests.methods.comparing import built, learned, same_network


def test_the_head_moves_freely_while_the_backbone_is_held_back() -> None:
    method, _ = built("spg-no-smh")
    assert isinstance(method, SPGWithoutMaskedHead)
    method.mask.update({name: torch.full_like(p, 0.75) for name, p in method.mask.parameters().items()})
    keep = method.update_scale()
    assert {keep[p] for p in method.heads.parameters()} == {1.0}
    assert all((keep[p] == 0.25).all() for p in method.backbone.parameters())


def test_first_task_is_ncl_to_the_bit_and_the_second_not_spg() -> None:
    assert same_network(learned("spg-no-smh", tasks=1), learned("ncl", tasks=1))
    dry = {"drop1": 0.0, "drop2": 0.0}
    assert not same_network(learned("spg-no-smh", **dry), learned("spg", **dry))
