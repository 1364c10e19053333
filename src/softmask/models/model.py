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
from softmask.errors import DataError, SoftmaskError, UnknownName
from softmask.learning.device import exact, find_device
from softmask.learning.evaluation import evaluating
from softmask.learning.method import Method
from softmask.learning.training import Training
from softmask.models.adoption import take_over
from softmask.models.data import Source, kind_of, normalise_bytes, read_inputs, read_task
from softmask.models.description import KnownTask, ModelConfig, check_name, default_normalisation
from softmask.models.folder import ModelFolder, ModelFolderError
from softmask.models.inspection import Inspection, room_warning
from softmask.models.learner import (
    check_method,
    expected_numbers,
    importance_by_layer,
    load_method,
    make_method,
    mask_of,
    method_settings,
    parameter_count,
    room_of,
    usual_training,
)
from softmask.models.networks import Network, name_of
from softmask.models.probes import keep_probe, measure_drift
from softmask.models.teaching import Watch, make_task, teach
from softmask.storage.lease import Lease

ATTEMPTS = 5  # to read a model while others learn


@dataclass(frozen=True)
class Prediction:
    """One answer of one head."""

    item: str
    """The path of a picture, or the position in a tensor."""
    task: str
    label: str
    confidence: float
    probabilities: dict[str, float]


class ContinualModel:
    """A model in a folder. Every `learn` adds a task, as a whole or not at all; no old data are needed.

    model = ContinualModel.create("pets-model", network="alexnet", input_shape=(3, 32, 32))
    model.learn("cats-vs-dogs", "photos/cats-vs-dogs")
    model.predict("new-photos", task="cats-vs-dogs")
    """

    def __init__(
        self, folder: ModelFolder, config: ModelConfig, network: Network, method: Method, device: torch.device
    ) -> None:
        """Use `create`, `open` or `adopt`."""
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
        method: str = "spg",
        settings: Mapping[str, Any] | None = None,
        seed: int = 1,
        device: str = "cpu",
    ) -> ContinualModel:
        """A new model that knows nothing yet, in a folder of its own. It may be opened on another device later."""
        where = find_device(device)
        config = _new_config(network, input_shape, width, method, settings, seed)
        learner, folder = make_method(config, network, ()), ModelFolder(Path(path))
        _found(folder, config, network, learner, _event("created", network=config.network, method=method))
        return cls(folder, config, network, learner, where)

    @classmethod
    def open(cls, path: str | Path, network: Network | None = None, *, device: str = "cpu") -> ContinualModel:
        """The model in a folder. One with a network of your own is opened only if you name that network here."""
        folder, where = ModelFolder(Path(path)), find_device(device)
        for attempt in range(ATTEMPTS):
            config = folder.read_config()
            try:
                return cls(folder, config, network or config.network, load_method(folder, config, network), where)
            except ModelFolderError:
                # A task may have been learned, and this generation removed, while it was read.
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
        method: str = "spg",
        settings: Mapping[str, Any] | None = None,
        width: float = 1.0,
        seed: int = 1,
        device: str = "cpu",
    ) -> ContinualModel:
        """Take a model that was trained elsewhere, and protect what it knows, as a sample of its data shows it.

        `network` makes a module like `backbone`, for the day on which the folder is opened again; `head` is the linear
        layer that follows the backbone.
        """
        config, where = _new_config(network, input_shape, width, method, settings, seed), find_device(device)
        _checked_name(task)
        train, val = read_task(sample, None, config.input_shape, classes, (seed, task))
        known = make_task(config, task, train, val).on(where)
        taught = take_over(config, network, backbone, head, known, train.classes)
        config, folder = replace(config, generation=1, tasks=(taught.facts,)), ModelFolder(Path(path))
        _found(folder, config, network, taught.method, _event("adopted", task=task, accuracy=taught.facts.accuracy))
        return cls(folder, config, network, load_method(folder, config, network), where)

    @property
    def path(self) -> Path:
        return self._folder.path

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks that the model knows, in the order in which it learned them."""
        return tuple(task.name for task in self.config.tasks)

    def learn(
        self,
        name: str,
        train: Source,
        val: Source | None = None,
        *,
        classes: Sequence[str] | None = None,
        training: Training | None = None,
        probe: int = 0,
        watch: Watch | None = None,
    ) -> KnownTask:
        """Learn one more task, and keep what was learned before.

        `train` is a folder of class folders, a dataset of `(x, y)` pairs or a pair of tensors; `val` alike, or a tenth
        of the training samples. Stops when the validation loss no longer falls; later tasks are learned at a lower rate
        than the first, unless `training` says otherwise. With `probe`, so many validation samples are kept in the
        folder for `inspect(probe=True)`.
        """
        _checked_name(name)
        if isinstance(probe, bool) or probe < 0:
            raise SoftmaskError(f"cannot keep {probe} samples: probe is a number of them and must not be below 0")
        with Lease(self.path) as lease:
            self._refresh()
            if name in self.tasks:
                raise SoftmaskError(f"the model knows a task {name!r} already: give the new one another name")
            self._folder.tidy(self.config)
            known, held = read_task(train, val, self.config.input_shape, classes, (self.config.seed, name))
            task = make_task(self.config, name, known, held).on(self._device)
            training = training or usual_training(len(self.config.tasks))
            taught = teach(self.config, self._network, self._method.state_dict(), task, known.classes, training, watch)
            facts = taught.facts
            lease.require()  # before anything is written: another process may have learned meanwhile
            if probe:
                answer = partial(self._answers, taught.method)
                facts = replace(facts, probe=keep_probe(self._folder, answer, taught.task, probe))
            config = replace(self.config, generation=self.config.generation + 1, tasks=(*self.config.tasks, facts))
            lease.require()
            event = _event("learned", task=name, classes=list(facts.classes), accuracy=facts.accuracy, room=facts.room)
            self._folder.commit(config, taught.method.state_dict(), event, expected_numbers(config, self._network))
        self.config, self._method = config, taught.method.eval()
        if message := room_warning(config.tasks):
            warnings.warn(message, stacklevel=2)
        return facts

    def predict(
        self, inputs: Source, task: str | None = None, *, damaged: Callable[[str], None] | None = None
    ) -> list[Prediction]:
        """Class names and probabilities for a picture, a folder, a list of them, or a tensor.

        Without a task every head answers that was taught with such inputs (bytes or floats), for each input in the
        order of the tasks, and a warning says what that means.
        A picture that cannot be read is an error, or, told to `damaged`, left out.
        """
        if not self.tasks:
            raise SoftmaskError(f"{self.path} knows no task yet: let it learn one first")
        if task is not None and task not in self.tasks:
            raise UnknownName("task", task, self.tasks)
        if task is None and len(self.tasks) > 1:
            warnings.warn(
                "no task was named, so every head answers: a task-incremental model is not made to tell tasks apart, "
                "and a high confidence in one task does not mean that the input belongs to it",
                stacklevel=2,
            )
        found: list[Prediction] = []
        for names, part in read_inputs(inputs, self.config.input_shape, damaged):
            wanted = self._taught_with(kind_of(part)) if task is None else [self.tasks.index(task)]
            answers = {index: self.probabilities(part, index) for index in wanted}
            for row, item in enumerate(names):
                found += [self._prediction(item, index, answers[index][row]) for index in wanted]
        return found

    def _taught_with(self, kind: str) -> list[int]:
        """The tasks that can be asked about such inputs; all of them if there is none, so that the error tells why."""
        taught = [index for index, known in enumerate(self.config.tasks) if known.inputs in ("", kind)]
        return taught or list(range(len(self.tasks)))

    def probabilities(self, inputs: Tensor, task: int) -> Tensor:
        """One row for each input, one column for each class of the task with this number."""
        known = self.config.tasks[task]
        if known.inputs and known.inputs != kind_of(inputs):
            raise DataError(
                f"task {known.name!r} was learned from {known.inputs}, these are {kind_of(inputs)}: "
                "pictures are bytes and normalised, floats are taken as they are, so give what it was taught with"
            )
        return self._answers(self._method, inputs, task)

    def inspect(self, probe: bool = False) -> Inspection:
        """Tasks, importance by layer, room left, size; with `probe`, how the answers to kept samples have changed."""
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
            room=room_of(self._method),
            blocked=None if mask is None else mask.blocked(),
            drift=measure_drift(self._folder, self.config, self.probabilities) if probe else (),
        )

    def _answers(self, method: Method, inputs: Tensor, task: int) -> Tensor:
        normalise = normalise_bytes(inputs, self.config.normalise)
        with exact(self._device), evaluating(method), torch.inference_mode():
            there = inputs.to(self._device)
            answers: Tensor = method(normalise(there) if normalise else there, task).softmax(1)
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


def _new_config(
    network: Network,
    input_shape: Sequence[int],
    width: float,
    method: str,
    settings: Mapping[str, Any] | None,
    seed: int,
) -> ModelConfig:
    check_method(method)
    method_settings(method, settings or {})
    shape = tuple(int(side) for side in input_shape)
    normal = default_normalisation(shape)
    try:
        return ModelConfig(
            network=name_of(network),
            input_shape=shape,
            width=float(width),
            method=method,
            settings=dict(settings or {}),
            seed=seed,
            mean=normal.mean if normal else (),
            std=normal.std if normal else (),
        )
    except ValueError as error:
        raise SoftmaskError(str(error)) from None


def _found(
    folder: ModelFolder, config: ModelConfig, network: Network, method: Method, event: Mapping[str, Any]
) -> None:
    """A new model in its folder."""
    folder.prepare()  # refuses before anything is written, even a lease
    with Lease(folder.path):
        folder.prepare()  # another process may have been quicker
        folder.commit(config, method.state_dict(), event, expected_numbers(config, network))


def _checked_name(name: str) -> None:
    try:
        check_name(name, "a task's name")
    except ValueError as error:
        raise SoftmaskError(str(error)) from None


def _event(kind: str, **facts: Any) -> dict[str, Any]:
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"kind": kind, "time": when, "softmask": softmask.__version__, **facts}
