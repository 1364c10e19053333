"""L2: a custom continual-learning method in 40 lines, outside the package.

Penalises the squared distance of every parameter of the backbone from its value after the last task.
Remembers between tasks: the last weights of the backbone.
Cost: a step costs a little more; no pass at task ends.

Run `python examples/own_method.py`: it learns two tasks of built-in digits with it and prints the accuracies.
In a package of your own, name the module under the entry-point group `softmask.methods`, and `softmask run --method l2`
finds it; the checks in `softmask.testing` show whether it meets the contract.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from softmask.learning import Facts, Method, PerParameter, Step, Task, register, search


@register("l2")
class L2(Method):
    title = "L2"
    family = "regularisation"

    @dataclass(frozen=True)
    class Settings:
        strength: float = search(0.1, low=1e-3, high=10.0, log=True)
        """Strength of the penalty; the range is for `softmask search`. Default: ours."""

    def build(self) -> None:
        super().build()
        self.anchor = PerParameter(self.backbone)  # buffers: saved, restored and resumed by themselves
        self.anchor.copy_(self.backbone.parameters())

    def after_backward(self, step: Step) -> None:
        if step.task.id > 0:
            for weight, anchor in zip(self.backbone.parameters(), self.anchor.tensors(), strict=True):
                if weight.grad is not None:
                    weight.grad.add_(weight.detach() - anchor, alpha=self.settings.strength)

    def end_task(self, task: Task) -> Facts:
        self.anchor.copy_(self.backbone.parameters())
        return {}


def main(epochs: int = 5) -> None:
    from softmask.experiments.runs.config import make_config
    from softmask.experiments.runs.run import run
    from softmask.experiments.runs.store import Store

    with tempfile.TemporaryDirectory() as folder:
        changes = {"epochs": epochs, "width": 0.125, "strength": 0.05}
        config = make_config("l2", "D-5", preset="short", tasks=2, changes=changes)
        for after, row in run(config, Store(Path(folder))).accuracies().items():
            print(f"after task {after}:", " ".join(f"{accuracy:5.1f}" for accuracy in row.values()))


if __name__ == "__main__":
    main()
