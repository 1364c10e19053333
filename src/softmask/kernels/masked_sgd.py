"""Stochastic gradient descent in which every parameter may be held back, in one pass over memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

KeptShare = Tensor | float


class MaskedSGD(Optimizer):
    """Plain SGD with `parameter <- parameter - lr * keep * gradient` (eq. 6 and 7).

    `keep` maps a parameter to 1 - importance: a tensor of its shape, or one number for all of it. A parameter that is
    not in it moves freely, by the same arithmetic: a mask of ones gives bit for bit the same as no mask. The shares
    belong to a task, not to the optimizer's state: `state_dict` does not hold them.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        keep: Mapping[Tensor, KeptShare] | None = None,
    ) -> None:
        if lr < 0:
            raise ValueError(f"a learning rate is not negative: {lr}")
        super().__init__(params, {"lr": lr})
        known = {parameter for group in self.param_groups for parameter in group["params"]}
        self._keep: dict[Tensor, Tensor] = {}
        for parameter, share in (keep or {}).items():
            if parameter not in known:
                raise ValueError("keep names a parameter that the optimizer does not train")
            self._keep[parameter] = self._as_tensor(parameter, share)

    @staticmethod
    def _as_tensor(parameter: Tensor, share: KeptShare) -> Tensor:
        share = torch.as_tensor(share, dtype=parameter.dtype, device=parameter.device).detach()
        if share.dim() > 0 and share.shape != parameter.shape:
            raise ValueError(f"a mask of shape {tuple(share.shape)} for a parameter of {tuple(parameter.shape)}")
        return share

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One update; `closure` may compute the loss and its gradients anew."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
                    parameter.addcmul_(gradient, self._kept_share(parameter), value=-float(group["lr"]))
        return loss

    def _kept_share(self, parameter: Tensor) -> Tensor:
        if parameter not in self._keep:
            # A one, not a plain addition: `add_` may round differently from `addcmul_`.
            self._keep[parameter] = self._as_tensor(parameter, 1.0)
        return self._keep[parameter]
