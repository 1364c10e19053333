"""Stochastic gradient descent with a factor for every parameter, in one pass over memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

Scale = Tensor | float


class MaskedSGD(Optimizer):
    """Plain SGD with `parameter <- parameter - lr * update_scale * gradient` (eq. 6 and 7).

    `update_scale` maps a parameter to 1 - importance: a tensor of its shape, or one number for all of it. A parameter
    that is not in it is updated without a factor, by the same arithmetic: a scale of ones gives bit-identical results.
    The scales belong to a task, not to the optimizer's state: `state_dict` does not contain them.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        update_scale: Mapping[Tensor, Scale] | None = None,
    ) -> None:
        if lr < 0:
            raise ValueError(f"the learning rate must not be negative: {lr}")
        super().__init__(params, {"lr": lr})
        known = {parameter for group in self.param_groups for parameter in group["params"]}
        self._scales: dict[Tensor, Tensor] = {}
        for parameter, scale in (update_scale or {}).items():
            if parameter not in known:
                raise ValueError("update_scale names a parameter that the optimizer does not train")
            self._scales[parameter] = self._as_tensor(parameter, scale)

    @staticmethod
    def _as_tensor(parameter: Tensor, scale: Scale) -> Tensor:
        scale = torch.as_tensor(scale, dtype=parameter.dtype, device=parameter.device).detach()
        if scale.dim() > 0 and scale.shape != parameter.shape:
            raise ValueError(f"a mask of shape {tuple(scale.shape)} for a parameter of {tuple(parameter.shape)}")
        return scale

    def update_scales(self) -> dict[Tensor, Tensor]:
        """The scale of each parameter that has one."""
        return dict(self._scales)

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
                    parameter.addcmul_(gradient, self._scale_of(parameter), value=-float(group["lr"]))
        return loss

    def _scale_of(self, parameter: Tensor) -> Tensor:
        if parameter not in self._scales:
            # A one, not a plain addition: `add_` may round differently from `addcmul_`.
            self._scales[parameter] = self._as_tensor(parameter, 1.0)
        return self._scales[parameter]
