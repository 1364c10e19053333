"""Stochastic gradient descent with a factor for every parameter, in one pass over memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

Factor = Tensor | float


class MaskedSGD(Optimizer):
    """Plain SGD with `parameter <- parameter - lr * keep * gradient` (eq. 6 and 7).

    `keep` maps a parameter to 1 - importance: a tensor of its shape, or one value for all of it. Other parameters move
    freely, by the same arithmetic: a mask of ones equals no mask to the bit. The factors belong to a task, not to the
    optimizer's state: `state_dict` does not contain them.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        keep: Mapping[Tensor, Factor] | None = None,
    ) -> None:
        if lr < 0:
            raise ValueError(f"the learning rate must not be negative: {lr}")
        super().__init__(params, {"lr": lr})
        known = {parameter for group in self.param_groups for parameter in group["params"]}
        self._keep: dict[Tensor, Tensor] = {}
        for parameter, share in (keep or {}).items():
            if parameter not in known:
                raise ValueError("keep names a parameter that the optimizer does not train")
            self._keep[parameter] = self._as_tensor(parameter, share)

    @staticmethod
    def _as_tensor(parameter: Tensor, share: Factor) -> Tensor:
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
        """One update; `closure` may recompute the loss and its gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
                    parameter.addcmul_(gradient, self._factor_of(parameter), value=-float(group["lr"]))
        return loss

    def _factor_of(self, parameter: Tensor) -> Tensor:
        if parameter not in self._keep:
            # A one, not a plain addition: `add_` may round differently from `addcmul_`.
            self._keep[parameter] = self._as_tensor(parameter, 1.0)
        return self._keep[parameter]
