"""ContinualModel: a folder that learns one task after another, and predicts."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import softmask
from softmask.core.gate import check_share
from softmask.errors import DataError, SoftmaskError, UnknownName
from softmask.learning.device import exact, find_device
from softmask.learning.evaluation import evaluating
from softmask.learning.method import Method
from softmask.learning.without_id import ClassStatistics, guess_tasks
from softmask.models.data import Source, kind_of, normalise_bytes, read_inputs, read_task
from softmask.models.description import KnownTask, ModelConfig, check_name, new_config
from softmask.models.export import write_export
from softmask.models.folder import ModelFolder, ModelFolderError
from softmask.models.gate import FolderGate
from softmask.models.inspection import UNLABELLED, Inspection, capacity_warning, keep_probe, measure_drift, write_probe
from softmask.models.learner import (
    BY_ADAMW,
    Watch,
    adopt_task,
    check_method,
    expected_state,
    free_capacity,
    importance_by_layer,
    learn_task,
    load_method,
    load_statistics,
    make_method,
    make_task,
    mask_of,
    method_settings,
    new_settings,
    new_statistics,
    parameter_count,
    without_head,
)
from softmask.models.networks import Network, name_of
from softmask.models.training import Changes, usual_training
from softmask.storage.lease import Lease

ATTEMPTS = 5  # to read a model while others learn


@dataclass(frozen=True)
class Prediction:
    """The answer of one head to one input."""

    item: str
    """The path of an image file, or the position among the inputs."""
    task: str
    label: str
    confidence: float
    probabilities: dict[str, float]
    task_share: float | None = None
    """The probability that the input belongs to this task rather than another; None where its task was named."""


class ContinualModel:
    """A model in a folder. Every `learn` adds a task, completely or not at all; old data are not needed.

    model = ContinualModel.create("pets-model", network="alexnet", input_shape=(3, 32, 32))
    model.learn("cats-vs-dogs", "photos/cats-vs-dogs")
    model.predict("new-photos", task="cats-vs-dogs")
    """

    def __init__(
        self,
        folder: ModelFolder,
        config: ModelConfig,
        network: Network,
        method: Method,
        statistics: ClassStatistics | None,
        device: torch.device,
    ) -> None:
        """Use `create`, `open` or `adopt`."""
        self._statistics = statistics
        self._folder, self.config, self._network, self._method = folder, config, network, method.to(device)
        self._device = device

    @classmethod
    def create(
        cls,
        path: str | Path,
        network: Network = "alexnet",
        input_shape: Sequence[int] = (3, 32, 32),
        *,
        width: float = 1.0,
        method: str = "lwf",
        settings: Mapping[str, Any] | None = None,
        seed: int = 1,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        device: str = "cpu",
    ) -> ContinualModel:
        """A new model without tasks, in a folder of its own. It may be opened on another device later.

        Images (bytes) are divided by 255 and normalised per channel with `mean` and `std`; the default is ImageNet's
        for three channels, 0.5 and 0.25 for others. Floats are used as they are.
        """
        where = find_device(device)
        fields = {"input_shape": input_shape, "width": width, "seed": seed, "mean": mean, "std": std}
        config = _new_config(network, method, settings, **fields)
        learner, folder = make_method(config, network, ()), ModelFolder(Path(path))
        _write_new(folder, config, network, learner, _event("created", network=config.network, method=method))
        return cls(folder, config, network, learner, new_statistics(config), where)

    @classmethod
    def open(cls, path: str | Path, network: Network | None = None, *, device: str = "cpu") -> ContinualModel:
        """The model in a folder. A model with a custom network is opened only if that network is named here."""
        folder, where = ModelFolder(Path(path)), find_device(device)
        for attempt in range(ATTEMPTS):
            config = folder.read_config()
            try:
                method = load_method(folder, config, network)
                statistics = load_statistics(folder, config, method)
                if statistics is None and folder.read_config().generation != config.generation:
                    continue
                return cls(folder, config, network or config.network, method, statistics, where)
            except ModelFolderError:
                # Another process may have learned a task, and removed this generation, while it was read.
                if attempt == ATTEMPTS - 1 or folder.read_config().generation == config.generation:
                    raise
        raise AssertionError("unreachable")

    @classmethod
    def adopt(
        cls,
        path: str | Path,
        backbone: nn.Module,
        head: nn.Module,
        task: str,
        sample: Source,
        *,
        network: Network,
        input_shape: Sequence[int],
        classes: Sequence[str] | None = None,
        method: str = "lwf",
        settings: Mapping[str, Any] | None = None,
        width: float = 1.0,
        seed: int = 1,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        device: str = "cpu",
    ) -> ContinualModel:
        """Take a model that was trained elsewhere, with a labelled sample of its data, and protect it from then on.

        `network` makes a module like `backbone`, for when the folder is opened again; `head` is the linear layer that
        follows the backbone, and `classes` names its outputs: the sample may lack some of them. Images in bytes are
        normalised with `mean` and `std` (see `create`), which must be those that the model was trained with.
        """
        where = find_device(device)
        fields = {"input_shape": input_shape, "width": width, "seed": seed, "mean": mean, "std": std}
        config = _new_config(network, method, settings, **fields)
        _checked_name(task)
        train, val = read_task(sample, None, config.input_shape, classes, (seed, task), keep_empty_classes=True)
        if mean is None and kind_of(train.inputs) == "bytes":
            warnings.warn(
                f"the images are normalised with mean {config.mean} and std {config.std}; if the model was trained "
                "with others, pass mean= and std=",
                stacklevel=2,
            )
        known = make_task(config, task, train, val).on(where)
        adopted = adopt_task(config, network, backbone, head, known, train.classes)
        config, folder = replace(config, generation=1, tasks=(adopted.facts,)), ModelFolder(Path(path))
        _write_new(folder, config, network, adopted.method, _event("adopted", task=task), adopted.statistics)
        return cls(folder, config, network, load_method(folder, config, network), adopted.statistics, where)

    @property
    def path(self) -> Path:
        return self._folder.path

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the learned tasks, in the order in which they were learned."""
        return tuple(task.name for task in self.config.tasks)

    def learn(
        self,
        name: str,
        train: Source,
        val: Source | None = None,
        *,
        classes: Sequence[str] | None = None,
        training: Changes | None = None,
        probe: int = 0,
        retain: float | None = None,
        strict: bool = False,
        watch: Watch | None = None,
    ) -> KnownTask:
        """Learn one more task, and keep what was learned before.

        `train` is a folder of class folders, a dataset of `(x, y)` pairs or a pair of tensors; `val` alike, or a tenth
        of the training samples. `training` names the fields that are to differ from the defaults of the folder, as in
        `{"epochs": 40, "lr": 3e-4}`; fields of a `Training` that were not given count as not named. With `probe`, that
        many validation samples are kept in the folder for `inspect(probe=True)` and for later gates.

        `retain` is the gate: every earlier task must keep this share of its accuracy on its kept samples (of its
        answers, where they have no labels). Otherwise `RetentionError` is raised with the curves, one value an epoch,
        and the model is as it was.

        Image files that cannot be read are left out with a warning, or an error if `strict`.
        """
        _checked_name(name)
        if isinstance(probe, bool) or probe < 0:
            raise SoftmaskError(f"probe must be a number of samples, 0 or more, not {probe}")
        if retain is not None:
            check_share(retain)
        with Lease(self.path) as lease:
            self._refresh()
            gate = None if retain is None else FolderGate(retain, self._folder, self.config, self._answers, watch)
            if name in self.tasks:
                raise SoftmaskError(f"the model has a task {name!r} already: give the new one another name")
            usual_training(self.config, training)  # a mistake is told before images are read
            self._folder.tidy(self.config)
            purpose = (self.config.seed, name)
            known, held = read_task(train, val, self.config.input_shape, classes, purpose, strict=strict)
            task = make_task(self.config, name, known, held).on(self._device)
            wanted = usual_training(self.config, training, known)
            state = self._method.state_dict()
            learned = learn_task(
                self.config, self._network, state, task, known.classes, wanted, self._statistics, gate or watch
            )
            if gate is not None:
                gate.check(learned.method)
            facts = learned.facts
            lease.require()  # before anything is written: another process may have learned meanwhile
            if probe:
                answer = partial(self._answers, learned.method)
                number = max(self.config.numbers, default=-1) + 1
                kept = keep_probe(self._folder, number, answer, learned.task, probe)
                facts = replace(facts, probe=kept, number=None if number == learned.task.id else number)
            config = replace(self.config, generation=self.config.generation + 1, tasks=(*self.config.tasks, facts))
            lease.require()
            event = _event("learned", task=name, classes=list(facts.classes), accuracy=facts.accuracy)
            expected = expected_state(config, self._network)
            self._folder.commit(config, learned.method.state_dict(), event, expected, learned.statistics)
        self.config, self._method, self._statistics = config, learned.method.eval(), learned.statistics
        if message := capacity_warning(config.tasks):
            warnings.warn(message, stacklevel=2)
        return facts

    def keep_probe(self, task: str, inputs: Source) -> None:
        """Keep inputs of a task without labels, and what the model answers to them now, for later gates.

        For tasks that were learned without `probe`. A probe that a task has already is not replaced.
        """
        with Lease(self.path) as lease:
            self._refresh()
            place = self._position(task)
            if self.config.tasks[place].probe:
                raise SoftmaskError(f"task {task!r} has kept samples already")
            parts = [part for _, part in read_inputs(inputs, self.config.input_shape)]
            if not parts:
                raise DataError("there are no inputs to keep")
            kept = torch.cat(parts)
            labels = torch.full((len(kept),), UNLABELLED)
            lease.require()
            answers = self.probabilities(kept, place)
            write_probe(self._folder, self.config.numbers[place], kept, labels, answers)  # not read until described
            known = replace(self.config.tasks[place], probe=len(kept))
            tasks = (*self.config.tasks[:place], known, *self.config.tasks[place + 1 :])
            self._describe(lease, tasks, _event("probe", task=task, samples=len(kept)))

    def export(self, path: str | Path, task: str, formats: Sequence[str] = ("safetensors",)) -> None:
        """Write one task to a new folder, for programs that know nothing of `softmask`.

        `labels.json` tells the classes, the shape and the normalisation. Formats: `safetensors` (weights by the names
        of the modules), `torch` (a program for `torch.export.load`) and `onnx`. The two programs give probabilities
        for batches of any size; for a task that was learned from images they take pixels from 0 to 1 and normalise
        them.
        """
        place = self._position(task)
        known, config = self.config.tasks[place], self.config
        normalise = None if known.inputs == "floats" else config.normalise
        about = {
            "task": known.name,
            "classes": list(known.classes),
            "input_shape": list(config.input_shape),
            "inputs": "floats as they are" if normalise is None else "pixels from 0 to 1, channels first",
            "mean": None if normalise is None else list(normalise.mean),
            "std": None if normalise is None else list(normalise.std),
        }
        method = self._method
        write_export(Path(path), method.backbone, method.heads[place], normalise, about, formats)

    def rename(self, task: str, name: str) -> None:
        """Give a task another name."""
        _checked_name(name)
        with Lease(self.path) as lease:
            self._refresh()
            place = self._position(task)
            if name in self.tasks:
                raise SoftmaskError(f"the model has a task {name!r} already")
            renamed = replace(self.config.tasks[place], name=name)
            tasks = (*self.config.tasks[:place], renamed, *self.config.tasks[place + 1 :])
            self._describe(lease, tasks, _event("renamed", task=task, name=name))

    def remove(self, task: str) -> None:
        """Forget a task on purpose: its head and its kept samples. The backbone stays as it is."""
        with Lease(self.path) as lease:
            self._refresh()
            place = self._position(task)
            if len(self.tasks) == 1:
                raise SoftmaskError(f"{task!r} is the only task: delete the folder {self.path} instead")
            numbered = [
                replace(known, number=number)
                for known, number in zip(self.config.tasks, self.config.numbers, strict=True)
            ]
            tasks = (*numbered[:place], *numbered[place + 1 :])
            config = replace(self.config, generation=self.config.generation + 1, tasks=tasks)
            method = without_head(config, self._network, self._method.state_dict(), place)
            lease.require()
            event = _event("removed", task=task)
            left = self._statistics and self._statistics.without(place)
            expected = expected_state(config, self._network)
            self._folder.commit(config, method.state_dict(), event, expected, left)
        self.config, self._method, self._statistics = config, method.to(self._device).eval(), left

    def _describe(self, lease: Lease, tasks: Sequence[KnownTask], event: Mapping[str, Any]) -> None:
        config = replace(self.config, tasks=tuple(tasks))
        lease.require()
        self._folder.describe(config, event)
        self.config = config

    def predict(
        self, inputs: Source, task: str | None = None, *, damaged: Callable[[str], None] | None = None
    ) -> list[Prediction]:
        """Class names and probabilities for images, or for a tensor of inputs.

        Images are files, folders, PIL images, encoded bytes, arrays of height x width x channels, or lists of these.
        Without a task the one is found whose classes have the nearest mean features, among those that learned from
        such inputs (bytes or floats); `task_share` says how sure that is. In a folder of an earlier release, which
        has no means, every such head answers, in the order of the tasks, and a warning says what that means. An image
        that cannot be read is an error, unless `damaged` is given: then its message is passed to `damaged` and the
        image is left out.
        """
        if not self.tasks:
            raise SoftmaskError(f"{self.path} has not learned a task yet")
        wanted = None if task is None else [self._position(task)]
        finding = task is None and len(self.tasks) > 1 and self._statistics is not None
        if task is None and len(self.tasks) > 1 and not finding:
            warnings.warn(
                "no task was named, and this folder has no class means by which to find it, so every head answers: "
                "high confidence in one task does not mean that the input belongs to it",
                stacklevel=2,
            )
        found: list[Prediction] = []
        for names, part in read_inputs(inputs, self.config.input_shape, damaged):
            asked = self._learned_from(kind_of(part)) if wanted is None else wanted
            if finding:
                found += self._found(names, part, asked)
                continue
            answers = {index: self.probabilities(part, index) for index in asked}
            for row, item in enumerate(names):
                found += [self._prediction(item, index, answers[index][row]) for index in asked]
        return found

    def _found(self, names: Sequence[str], part: Tensor, asked: Sequence[int]) -> list[Prediction]:
        """Answers by the head of the task that each input seems to belong to."""
        assert self._statistics is not None
        normalise = normalise_bytes(part, self.config.normalise)
        x = part.to(self._device)
        try:
            with exact(self._device):
                guesses = guess_tasks(
                    self._method, self._statistics.to(self._device), normalise(x) if normalise else x, asked
                )
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            raise ModelFolderError(f"{self.path}: its class statistics are no covariance; name a task") from None
        answers = {index: self.probabilities(part, index) for index in {guess.task for guess in guesses}}
        return [
            replace(self._prediction(item, guess.task, answers[guess.task][row]), task_share=guess.share)
            for row, (item, guess) in enumerate(zip(names, guesses, strict=True))
        ]

    def _position(self, task: int | str) -> int:
        if isinstance(task, str):
            if task not in self.tasks:
                raise UnknownName("task", task, self.tasks)
            return self.tasks.index(task)
        if not -len(self.tasks) <= task < len(self.tasks):
            raise SoftmaskError(f"there is no task {task}: the model knows {len(self.tasks)}, counted from 0")
        return task

    def _learned_from(self, kind: str) -> list[int]:
        """The tasks that can answer about such inputs; all of them if there is none, so that the error tells why."""
        learned = [index for index, known in enumerate(self.config.tasks) if known.inputs in ("", kind)]
        return learned or list(range(len(self.tasks)))

    def probabilities(self, inputs: Tensor, task: int | str) -> Tensor:
        """One row for each input, one column for each class of the task, given by its name or its position."""
        task = self._position(task)
        known = self.config.tasks[task]
        if known.inputs and known.inputs != kind_of(inputs):
            raise DataError(
                f"task {known.name!r} was learned from {known.inputs}, these are {kind_of(inputs)}: "
                "bytes are images and are normalised, floats are used as they are; give the same kind"
            )
        return self._answers(self._method, inputs, task)

    def inspect(self, probe: bool = False) -> Inspection:
        """Tasks, importance by layer, free capacity, size; with `probe`, how the answers to kept samples changed."""
        mask = mask_of(self._method)
        return Inspection(
            path=str(self.path),
            network=self.config.network,
            method=self.config.method,
            input_shape=self.config.input_shape,
            parameters=parameter_count(self._method),
            bytes=self._folder.size(),
            tasks=self.config.tasks,
            importance=importance_by_layer(self._method),
            free_capacity=free_capacity(self._method),
            blocked=None if mask is None else mask.blocked(),
            drift=measure_drift(self._folder, self.config, self.probabilities) if probe else (),
        )

    def _answers(self, method: Method, inputs: Tensor, task: int) -> Tensor:
        normalise = normalise_bytes(inputs, self.config.normalise)
        with exact(self._device), evaluating(method), torch.inference_mode():
            x = inputs.to(self._device)
            answers: Tensor = method(normalise(x) if normalise else x, task).softmax(1)
            return answers.to("cpu")

    def _prediction(self, item: str, task: int, row: Tensor) -> Prediction:
        known = self.config.tasks[task]
        shares = dict(zip(known.classes, row.tolist(), strict=True))
        best = known.classes[int(row.argmax())]
        return Prediction(item, known.name, best, shares[best], shares)

    def _refresh(self) -> None:
        """Another process may have learned since."""
        config = self._folder.read_config()
        if config != self.config:
            self.config, self._method = config, load_method(self._folder, config, self._network).to(self._device)
            self._statistics = load_statistics(self._folder, config, self._method)


def _new_config(network: Network, method: str, settings: Mapping[str, Any] | None, **fields: Any) -> ModelConfig:
    check_method(method)
    method_settings(method, settings or {})
    by_adamw = method in BY_ADAMW
    return new_config(
        network=name_of(network),
        method=method,
        settings=new_settings(method, settings or {}),
        optimizer="adamw" if by_adamw else "sgd",
        dropout=not by_adamw,
        **fields,
    )


def _write_new(
    folder: ModelFolder,
    config: ModelConfig,
    network: Network,
    method: Method,
    event: Mapping[str, Any],
    statistics: ClassStatistics | None = None,
) -> None:
    """Writes a new model to its folder."""
    folder.prepare()  # refuses before anything is written, even a lease
    with Lease(folder.path):
        folder.prepare()  # another process may have been quicker
        folder.commit(config, method.state_dict(), event, expected_state(config, network), statistics)


def _checked_name(name: str) -> None:
    try:
        check_name(name, "a task's name")
    except ValueError as error:
        raise SoftmaskError(str(error)) from None


def _event(kind: str, **facts: Any) -> dict[str, Any]:
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"kind": kind, "time": when, "softmask": softmask.__version__, **facts}
