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
from softmask.core.answers import evaluating
from softmask.core.gate import check_share
from softmask.errors import ConfigError, DataError, SoftmaskError, UnknownName
from softmask.learning.device import exact, find_device
from softmask.learning.method import Method
from softmask.learning.without_id import ClassStatistics, guess_tasks
from softmask.models.attempts import Attempt, first_accepted
from softmask.models.data import Labelled, Source, kind_of, normalise_bytes, read_inputs, read_task
from softmask.models.description import KnownTask, ModelConfig, check_name, new_config
from softmask.models.export import write_export
from softmask.models.folder import ModelFolder, ModelFolderError
from softmask.models.gate import FolderGate
from softmask.models.growing import grown_classes, shift_new_classes
from softmask.models.history import History, accuracies, read_history
from softmask.models.inspection import (
    UNLABELLED,
    Inspection,
    capacity_warning,
    keep_probe,
    measure_drift,
    read_probe,
    write_probe,
)
from softmask.models.learner import (
    BY_ADAMW,
    Learned,
    Watch,
    adopt_alone,
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
from softmask.models.networks import TRANSFORMERS, Network, is_trusted, load_weights, name_of
from softmask.models.training import Changes, usual_training
from softmask.storage.lease import Lease

ATTEMPTS = 5  # to read a model while others learn


@dataclass(frozen=True)
class Prediction:
    """The prediction of one head for one input."""

    item: str
    """The path of an image file, or the position among the inputs."""
    task: str
    label: str
    confidence: float
    probabilities: dict[str, float]
    task_share: float | None = None
    """The probability that the input belongs to this task rather than another; None where its task was named."""


class ContinualModel:
    """A model in a folder. Every `learn` adds a task atomically; old data are not needed.

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
        pretrained: bool = False,
        weights: str | Path | None = None,
        device: str = "cpu",
    ) -> ContinualModel:
        """Create a model without tasks in a new folder. It may be opened on another device later.

        The features of a `pretrained` network are distilled from the first task on. Its weights are those that it is
        created with, or those in `weights`: a state file, or for `network="transformers:FOLDER"` a folder of
        transformers, whose own weights are the default. Nothing is downloaded.

        Images (bytes) are divided by 255 and normalised per channel with `mean` and `std`; the default is ImageNet's
        for three channels, 0.5 and 0.25 for others. Floats are used as they are.
        """
        where = find_device(device)
        fields = {"input_shape": input_shape, "width": width, "seed": seed, "mean": mean, "std": std}
        if pretrained and weights is None and isinstance(network, str) and network.startswith(TRANSFORMERS):
            weights = network.removeprefix(TRANSFORMERS)
        config = _new_config(network, method, settings, pretrained=pretrained or weights is not None, **fields)
        if pretrained and weights is None and is_trusted(config.network):
            raise ConfigError(f"{config.network} comes without weights: name a file of them (--weights, weights=)")
        learner, folder = make_method(config, network, ()), ModelFolder(Path(path))
        if weights is not None:
            load_weights(learner.backbone, Path(weights), network)
        _write_new(folder, config, network, learner, _event("created", network=config.network, method=method))
        return cls(folder, config, network, learner, new_statistics(config), where)

    @classmethod
    def open(cls, path: str | Path, network: Network | None = None, *, device: str = "cpu") -> ContinualModel:
        """Open the model in a folder. A custom network must be named again."""
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
        sample: Source | None = None,
        *,
        inputs: Source | None = None,
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
        """Adopt a trained model, and protect it from then on.

        The method `lwf` needs no data. With `inputs`, without labels, the folder stores the model's answers to them, so
        that forgetting can be measured and refused later (`retain`); with a labelled `sample` its accuracy is known,
        and other methods measure importance on it.

        `network` builds a module like `backbone` when the folder is opened again; `head` is the linear layer that
        follows the backbone, and `classes` names its outputs: the sample need not contain all of them. Images in bytes
        are normalised with `mean` and `std` (see `create`), which must be those that the model was trained with.
        """
        where = find_device(device)
        fields = {"input_shape": input_shape, "width": width, "seed": seed, "mean": mean, "std": std}
        config = _new_config(network, method, settings, **fields)
        _checked_name(task)
        if sample is None:
            names = [str(name) for name in classes or range(getattr(head, "out_features", 0))]
            learner, facts = adopt_alone(config, network, backbone, head, task, names)
            config, folder = replace(config, generation=1, tasks=(facts,)), ModelFolder(Path(path))
            _write_new(folder, config, network, learner, _event("adopted", task=task))
            made = cls(folder, config, network, load_method(folder, config, network), None, where)
            if inputs is not None:
                made.keep_probe(task, inputs)
            if mean is None:
                _warn_of_normalisation(config, made.config.tasks[0].inputs)
            return made
        train, val = read_task(sample, None, config.input_shape, classes, (seed, task), keep_empty_classes=True)
        if mean is None:
            _warn_of_normalisation(config, kind_of(train.inputs))
        known = make_task(config, task, train, val).on(where)
        adopted = adopt_task(config, network, backbone, head, known, train.classes)
        config, folder = replace(config, generation=1, tasks=(adopted.facts,)), ModelFolder(Path(path))
        event = _event("adopted", task=task, accuracy=adopted.facts.accuracy)
        _write_new(folder, config, network, adopted.method, event, adopted.statistics)
        made = cls(folder, config, network, load_method(folder, config, network), adopted.statistics, where)
        if inputs is not None:
            made.keep_probe(task, inputs)
        return made

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
        search_minutes: float | None = None,
        more: bool = False,
        strict: bool = False,
        watch: Watch | None = None,
    ) -> KnownTask:
        """Learn one more task while protecting the earlier ones.

        `train` is a folder of class folders, a dataset of `(x, y)` pairs or a pair of tensors; `val` likewise (default:
        a tenth of the training samples). `training` overrides the defaults of the folder, as in `{"epochs": 40, "lr":
        3e-4}`; of a `Training` only the fields that were passed count. With `probe`, that many validation samples are
        kept in the folder for `inspect(probe=True)` and for later gates.

        `retain` is the gate: every earlier task must keep this share of its accuracy on its kept samples (of its
        answers, if they are unlabelled). Otherwise `RetentionError` is raised with the curves, one value per epoch, and
        the model is unchanged. With `search_minutes` the task is learned again before that, each time with twice the
        strength (or half the learning rate, for methods without one), as long as an attempt can end in this time.

        With `more`, the data belong to a known task. They may have new classes: the head grows, and its rows of classes
        without new images are frozen. Image files that cannot be read are skipped with a warning, or an error if
        `strict`.
        """
        _checked_name(name)
        if isinstance(probe, bool) or probe < 0:
            raise SoftmaskError(f"probe must be a number of samples, 0 or more, not {probe}")
        if retain is not None:
            check_share(retain)
        if search_minutes is not None and (retain is None or not search_minutes > 0):
            raise SoftmaskError("search_minutes is a time above 0, for a search with retain=")
        with Lease(self.path) as lease:
            self.refresh()
            if not more and name in self.tasks:
                raise SoftmaskError(
                    f"the model has a task {name!r} already: give the new one another name, or say --more (more=True) "
                    "if these are more data of it"
                )
            place = self._position(name) if more else None
            gate = None if retain is None else FolderGate(retain, self._folder, self.config, self._answers, watch)
            usual_training(self.config, training)  # raises errors before images are read
            self._folder.tidy(self.config)
            data = self._read(name, train, val, classes, place, strict)
            wanted = usual_training(self.config, training, data[0])

            def attempt(with_: Attempt) -> Learned:
                learned = self._learn_once(with_, name, data, place, gate or watch)
                if gate is not None:
                    gate.check(learned.method)
                return learned

            learned, used = first_accepted(self.config, wanted, attempt, search_minutes)
            lease.require()  # before anything is written: another process may have learned meanwhile
            facts = self._kept(learned, place, probe)
            tasks = [*self.config.tasks]
            tasks[learned.place : learned.place + 1] = [facts]
            config = replace(self.config, generation=self.config.generation + 1, tasks=tuple(tasks))
            now = {name: facts.accuracy} | accuracies(self._folder, config, partial(self._answers, learned.method))
            lease.require()
            event = _event(
                "learned" if place is None else "learned more",
                task=name,
                classes=list(facts.classes),
                accuracy=facts.accuracy,
                accuracies=now,
                **used.changed,
            )
            expected = expected_state(config, self._network)
            self._folder.commit(config, learned.method.state_dict(), event, expected, learned.statistics)
        self.config, self._method, self._statistics = config, learned.method.eval(), learned.statistics
        if message := capacity_warning(config.tasks):
            warnings.warn(message, stacklevel=2)
        return facts

    def _read(
        self,
        name: str,
        train: Source,
        val: Source | None,
        classes: Sequence[str] | None,
        place: int | None,
        strict: bool,
    ) -> tuple[Labelled, Labelled]:
        """Training and validation set; of a known task with its classes first."""
        shape, config = self.config.input_shape, self.config
        if place is None:
            return read_task(train, val, shape, classes, (config.seed, name), strict=strict)
        purpose = (config.seed, f"{name}, generation {config.generation}")  # other draws than of the first time
        found = read_task(train, val, shape, classes, purpose, strict=strict, fewest=1)
        task = config.tasks[place]
        if task.inputs and task.inputs != (kind := kind_of(found[0].inputs)):
            raise DataError(f"task {name!r} was learned from {task.inputs}, these are {kind}: give the same kind")
        grown = grown_classes(task.classes, found[0].classes)
        missing = [each for each in task.classes if each not in found[0].classes]
        if missing and not self._has_labelled_samples(place):
            raise SoftmaskError(
                f"there are no images of {missing[0]!r} among the new ones, and no labelled samples of it were kept "
                "(--probe N), so it would be forgotten: add some images of it"
            )
        return found[0].within(grown), found[1].within(grown)

    def _has_labelled_samples(self, place: int) -> bool:
        if not self.config.tasks[place].probe:
            return False
        return bool((read_probe(self._folder, self.config, place)[1] != UNLABELLED).all())

    def _learn_once(
        self, attempt: Attempt, name: str, data: tuple[Labelled, Labelled], place: int | None, watch: Watch | None
    ) -> Learned:
        task = make_task(self.config, name, *data).on(self._device)
        state, classes = self._method.state_dict(), data[0].classes
        learned = learn_task(
            attempt.config, self._network, state, task, classes, attempt.training, self._statistics, watch, more=place
        )
        if place is None or len(data[0].labels.unique()) == len(classes):
            return learned

        def logits(inputs: Tensor) -> Tensor:
            return self._logits(learned.method, inputs, place)

        inputs, labels, _ = read_probe(self._folder, self.config, place)
        held = data[1]
        first, head = len(self.config.tasks[place].classes), learned.method.heads[place]
        shift_new_classes(head, first, (logits(inputs), labels), (logits(held.inputs), held.labels))
        right = logits(held.inputs).argmax(1) == held.labels
        return replace(learned, facts=replace(learned.facts, accuracy=right.double().mean().item()))

    def _kept(self, learned: Learned, place: int | None, count: int) -> KnownTask:
        """The task's entry in the description, once its samples are written; they are not read until it is."""
        facts, number = learned.facts, max(self.config.numbers, default=-1) + 1
        earlier = None if place is None or not facts.probe else read_probe(self._folder, self.config, place)
        grown = earlier is not None and earlier[2].shape[1] < len(facts.classes)
        if place is not None and not count and not grown:
            return replace(facts, number=self.config.numbers[place])
        if count or grown:
            answer = partial(self._answers, learned.method)
            kept = keep_probe(self._folder, number, answer, learned.task, learned.place, count, earlier)
            facts = replace(facts, probe=kept)
        return replace(facts, number=None if number == learned.place else number)

    def keep_probe(self, task: str, inputs: Source) -> None:
        """Keep unlabelled inputs of a task with the model's current answers, for later gates.

        For tasks that were learned without `probe`. An existing probe is not replaced.
        """
        with Lease(self.path) as lease:
            self.refresh()
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
            known = self.config.tasks[place]
            known = replace(known, probe=len(kept), inputs=known.inputs or kind_of(kept))
            tasks = (*self.config.tasks[:place], known, *self.config.tasks[place + 1 :])
            self._describe(lease, tasks, _event("probe", task=task, samples=len(kept)))

    def export(self, path: str | Path, task: str, formats: Sequence[str] = ("safetensors",)) -> None:
        """Write one task to a new folder, for programs that do not use `softmask`.

        `labels.json` contains the classes, the shape and the normalisation. Formats: `safetensors` (weights by the
        names of the modules), `torch` (a program for `torch.export.load`) and `onnx`. The two programs give
        probabilities
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
        """Rename a task."""
        _checked_name(name)
        with Lease(self.path) as lease:
            self.refresh()
            place = self._position(task)
            if name in self.tasks:
                raise SoftmaskError(f"the model has a task {name!r} already")
            renamed = replace(self.config.tasks[place], name=name)
            tasks = (*self.config.tasks[:place], renamed, *self.config.tasks[place + 1 :])
            self._describe(lease, tasks, _event("renamed", task=task, name=name))

    def remove(self, task: str) -> None:
        """Remove a task: its head and its kept samples. The backbone does not change."""
        with Lease(self.path) as lease:
            self.refresh()
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
        Without `task` it is inferred: the task of the class with the nearest mean feature, among those that learned
        from such inputs (bytes or floats); `task_share` is its probability. In a folder of an earlier release, which
        has no means, every such head answers, in the order of the tasks, with a warning. An image that cannot be read
        is an error, unless `damaged` is given: then its message is passed to `damaged` and the image is skipped.
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
        """Answers by the head of the task that is inferred for each input."""
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
        """The tasks that can answer about such inputs; all of them if there is none, so that the error explains why."""
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
        """Tasks, importance per layer, free capacity and size; with `probe`, the change of the answers to kept
        samples."""
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

    def history(self) -> History:
        """The events of the model, and the accuracy of each task after every event that changed the weights."""
        return read_history(self._folder.history)

    def _answers(self, method: Method, inputs: Tensor, task: int) -> Tensor:
        return self._logits(method, inputs, task).softmax(1)

    def _logits(self, method: Method, inputs: Tensor, task: int) -> Tensor:
        normalise = normalise_bytes(inputs, self.config.normalise)
        with exact(self._device), evaluating(method), torch.inference_mode():
            x = inputs.to(self._device)
            logits: Tensor = method(normalise(x) if normalise else x, task)
            return logits.to("cpu")

    def _prediction(self, item: str, task: int, row: Tensor) -> Prediction:
        known = self.config.tasks[task]
        shares = dict(zip(known.classes, row.tolist(), strict=True))
        best = known.classes[int(row.argmax())]
        return Prediction(item, known.name, best, shares[best], shares)

    def refresh(self) -> None:
        """Load the tasks that another process has added since the model was opened."""
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


def _warn_of_normalisation(config: ModelConfig, inputs: str) -> None:
    """The default is a guess, and with the wrong normalisation a model predicts less well without any other sign."""
    if config.mean and inputs != "floats":
        warnings.warn(
            f"images in bytes are normalised with mean {config.mean} and std {config.std}; if the model was trained "
            "with others, pass mean= and std=",
            stacklevel=3,
        )


def _checked_name(name: str) -> None:
    try:
        check_name(name, "a task's name")
    except ValueError as error:
        raise SoftmaskError(str(error)) from None


def _event(kind: str, **facts: Any) -> dict[str, Any]:
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"kind": kind, "time": when, "softmask": softmask.__version__, **facts}
