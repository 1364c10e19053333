"""PathNet: each task uses a path through a network of modules, found by tournament selection.

Every layer has M small modules; a path takes N of them in each layer and sums their outputs. Two paths are trained in
turn; the loser starts again as a mutant of the winner. Modules on the winning path are frozen for good. Source:
Fernando et al., arXiv 1701.08734, in the supervised form of the authors of HAT: two candidates, judged by the
validation loss.
Remembers between tasks: all modules, and the path of each task.
Mutation: each of the entries of a path changes with probability 1 / (their number) by a whole number from -2 to 2,
modulo M. A module that is in a layer's path twice counts twice.
Departures: free modules are re-initialised at the start of a task, which has the same distribution as restoring a copy
of the initial weights. With few epochs there are fewer generations: one epoch for each path and generation, and as many
in all as other methods get. The width of the modules is chosen to match the network sizes in the paper, which does not
give it; on other sequences it is chosen to match the size of the plain network. Gradients are clipped at a joint norm
of 1,000.
Cost: a step takes less than half as long as with plain training; with preset `paper` up to twice as many epochs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import cast

import torch
from torch import Tensor, nn

from softmask.learning import (
    Backbone,
    Cost,
    Facts,
    Fit,
    Fitter,
    Method,
    Scenario,
    Task,
    Training,
    derive,
    register,
    require_above_zero,
    search,
)
from softmask.learning.capacity import blocked_modules, column_and_heads, parameter_count, widest

CANDIDATES = 2

Path = list[list[int]]
"""For every layer, the modules whose outputs are summed; a module that occurs twice counts twice."""

LARGEST_JUMP = 2

# The share of the plain network's units with which modules have the size that the paper gives: with 16 modules a layer,
# by the number of tasks and of classes a task. Other numbers of modules fit the paper as well.
PAPER_MODULES = 16
PAPER_WIDTHS = {(10, 10): 0.250, (20, 5): 0.255, (10, 20): 0.252, (20, 10): 0.250, (100, 10): 0.275}
PAPER_WIDTHS |= {(10, 2): 0.249, (20, 2): 0.248, (10, 62): 0.269, (20, 62): 0.279}
COLOUR = (3, 32, 32)
PAPER_SHAPES = {62: (1, 28, 28)}  # handwriting; all others are in colour
WIDTHS = tuple(step / 1000 for step in range(1, 1001))


@register("pathnet")
class PathNet(Method):
    title = "PathNet"
    family = "parameter isolation"
    grows_with_tasks = "paths"
    needs_blocks = True
    never_forgets = True
    not_in_snapshot = ("columns",)
    clip = 1e3

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        modules: int = search(16, choices=(10, 16, 20))
        """M: modules in every layer, for all tasks together. Default: ours; it matches the paper's network sizes."""
        active: int = search(3, choices=(2, 3, 4, 5))
        """N: modules per layer on a path. Default: as in the code of HAT's authors."""
        width: float | None = None
        """Width of a module relative to the plain layer; None chooses it so that the network has about the plain
        network's size. Default: matches the paper's network sizes."""
        generations: int = search(20, choices=(5, 10, 20, 50))
        """How often the two paths are compared. Default: as in the code of HAT's authors."""
        lr: float | None = search(0.05, low=5e-3, high=0.08, log=True)
        """Learning rate; lower than for other methods, since summing N modules multiplies the signal. Default: as in
        the code of HAT's authors."""

        def __post_init__(self) -> None:
            require_above_zero(self, "modules", "active", "width", "generations", "lr")
            if self.active > self.modules:
                raise ValueError(f"a path cannot take {self.active} of {self.modules} modules")

    paths: Tensor

    def build(self) -> None:
        modules = self.settings.modules
        scale = self.settings.width or module_width(self.scenario, modules)
        self.columns = nn.ModuleList(self.make_backbone(scale) for _ in range(modules))
        self.heads = self.scenario.heads(self.column(0).widths[-1])
        shape = (self.scenario.num_tasks, len(self.column(0)), self.settings.active)
        self.register_buffer("paths", torch.full(shape, -1))

    def column(self, module: int) -> Backbone:
        """A plain narrow network; its blocks are the modules of this number, one a layer."""
        return cast(Backbone, self.columns[module])

    def features(self, x: Tensor, task: int) -> Tensor:
        x = self.column(0).prepare(x)
        for layer, path in enumerate(self.paths[task].tolist()):
            x = reduce(torch.add, [self.column(module)[layer](x) for module in path])
        return x

    def owned(self, tasks: int) -> list[set[int]]:
        """The modules of every layer that the first N tasks use."""
        return [set(layer.flatten().tolist()) for layer in self.paths[:tasks].unbind(1)]

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        with self.own_randomness(task):
            for layer, owned in enumerate(self.owned(task.id)):
                for module in range(self.settings.modules):
                    # A free module that is not on the path being trained gets no gradient and does not change.
                    block = self.column(module).blocks[layer].requires_grad_(module not in owned)
                    if task.id > 0 and module not in owned:
                        block.layer.reset_parameters()

    def rounds(self, training: Training) -> tuple[int, int]:
        """Generations, and epochs that each path gets in one."""
        wanted = self.settings.generations
        return max(1, min(wanted, training.epochs // CANDIDATES)), max(1, training.epochs // wanted)

    def adapted(self, training: Training) -> Training:
        generations, epochs = self.rounds(training)
        own = super().adapted(training)
        # The lowest rate is the common one, so a lower initial rate has a shorter way down.
        return replace(own, epochs=generations * epochs, lr_min=min(training.lr_min, own.lr))

    def learn(self, task: Task, fit: Fitter) -> None:
        """The tournament. Its resumable state is in the notes and in the two Fits."""
        generations, epochs = self.rounds(self.training_for(task, fit.training))
        notes = fit.notes
        if not notes:
            (layers, active), draws = self.paths.shape[1:], self.draws(task, generation=0)
            paths = [random_path(layers, self.settings.modules, active, draws) for _ in range(CANDIDATES)]
            notes.update(turn=0, until=epochs, winner=0, paths=paths)
        fits = [self.enter(task, fit, candidate) for candidate in range(CANDIDATES)]
        for turn in range(notes["turn"], CANDIDATES * generations):
            generation, candidate = divmod(turn, CANDIDATES)
            self.paths[task.id] = torch.tensor(notes["paths"][candidate])
            if turn > notes["turn"]:
                notes.update(turn=turn, until=fits[candidate].epoch + epochs)
            fits[candidate].run(notes["until"] - fits[candidate].epoch)
            if fits[candidate].best_loss < fits[notes["winner"]].best_loss:
                notes["winner"] = candidate
            if candidate == CANDIDATES - 1:
                if fits[notes["winner"]].done:
                    break
                self.replace_loser(task, fit, fits, self.draws(task, generation + 1))
        fits[notes["winner"]].restore_best()

    def enter(self, task: Task, fit: Fitter, candidate: int) -> Fit:
        """The Fit of a candidate; the path is a buffer, so that its best state holds the path too."""
        self.paths[task.id] = torch.tensor(fit.notes["paths"][candidate])
        return fit(self, f"path {candidate}")

    def replace_loser(self, task: Task, fit: Fitter, fits: list[Fit], draws: torch.Generator) -> None:
        """Both continue from the winner's best weights: the winner on its path, the loser on a mutant of it, at the
        winner's learning rate."""
        winner = fit.notes["winner"]
        loser = 1 - winner
        self.restore(fits[winner].best)
        paths = [fit.notes["paths"][winner]] * CANDIDATES
        paths[loser] = mutated(paths[winner], self.settings.modules, draws)
        fit.notes["paths"] = paths
        fits[loser] = self.enter(task, fit, loser).follow(fits[winner])

    def draws(self, task: Task, generation: int) -> torch.Generator:
        seed = derive(self.scenario.seeds.batches, task.name, type(self).__name__, generation)
        return torch.Generator().manual_seed(seed)

    def end_task(self, task: Task) -> Facts:
        """Used capacity: modules on the path of some task."""
        owned = self.owned(task.id + 1)
        parts = (
            (name, block, module in owned[layer])
            for module in range(self.settings.modules)
            for layer, (name, block) in enumerate(self.column(module).named_blocks.items())
        )
        return {"blocked": blocked_modules(parts), "path": self.paths[task.id].tolist()}

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        taken = cls.Settings.active / cls.Settings.modules
        # Modules of earlier paths only pass activations forward, a third of a step.
        free = sum((1 - taken) ** task for task in range(scenario.num_tasks)) / scenario.num_tasks
        return Cost(step=0.4 * (1 + 2 * free) / 3, fits=CANDIDATES, note="two paths a task: up to twice the epochs")


def random_path(layers: int, modules: int, active: int, draws: torch.Generator) -> Path:
    """`active` distinct modules for every layer."""
    return [torch.randperm(modules, generator=draws)[:active].tolist() for _ in range(layers)]


def mutated(path: Path, modules: int, draws: torch.Generator) -> Path:
    """On average one entry changes by -2 to 2, modulo the number of modules."""
    entries = torch.tensor(path)
    drawn = torch.rand(entries.shape, generator=draws) < 1 / entries.numel()
    jumps = torch.randint(-LARGEST_JUMP, LARGEST_JUMP + 1, entries.shape, generator=draws)
    return ((entries + drawn * jumps) % modules).tolist()


def module_width(scenario: Scenario, modules: int) -> float:
    """A module's width: that of the paper if it has the scenario, otherwise the widest that fits the plain network's
    size."""
    fitted = PAPER_WIDTHS.get((scenario.num_tasks, scenario.classes[0]))
    same_shape = scenario.input_shape == PAPER_SHAPES.get(scenario.classes[0], COLOUR) and scenario.network.width == 1
    if fitted is not None and modules == PAPER_MODULES and len(set(scenario.classes)) == 1 and same_shape:
        return fitted
    return widest(scenario, WIDTHS, partial(modular_parameters, modules=modules))


def modular_parameters(scenario: Scenario, scale: float, modules: int) -> int:
    """Parameters of a network with this many modules in every layer, `scale` times as wide as plain ones, and heads."""
    column, heads = column_and_heads(scenario, scale)
    return modules * parameter_count(column) + sum(map(parameter_count, heads))
