"""KeepAnswers: learning without forgetting, Li and Hoiem, ECCV 2016, for any model and any training loop.

Before a task begins, the model is copied as a teacher. While the task is learned, a distillation loss compares the
answers of the teacher and of the current model to the images of the *new* task. No old data are needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softmask.core.heads import Heads, frozen_copy, one_or_many, rebuilt_heads
from softmask.core.importance import preserved_state
from softmask.core.parameters import unwrapped
from softmask.core.recorded import RecordedAnswers

Of = Literal["answers", "features", "tokens"]
Teacher = Literal["copy", "recorded", "adapter-off"]
Precision = Literal["float32", "bfloat16"]
Forward = Callable[[nn.Module, Any], Any]
STATE_VERSION = 1
IGNORED = -100  # the label that torch's cross-entropy leaves out


def call(model: nn.Module, x: Any) -> Any:
    """A mapping as keyword arguments without `labels`, a tuple as positional ones, anything else as the only one."""
    if isinstance(x, Mapping):
        return model(**{name: value for name, value in x.items() if name != "labels"})
    return model(*x) if isinstance(x, tuple) else model(x)


class KeepAnswers:
    """A distillation loss that keeps a model's answers as they were when this object was created.

        keep = KeepAnswers(backbone, heads=old_heads)                       # before the task begins
        loss = F.cross_entropy(head(features), y) + keep(x, features)       # in your own loop
        keep.remember([*old_heads, head])                                   # before the next task

    `of="answers"`: T^2 KL(old || new) between the old heads' softmax at `temperature` T, summed over heads: each
    old task weighs the same. `of="features"`: the squared distance of the features, relative to their squared
    norm, for models without heads. `of="tokens"`: the next-token distributions of a causal language model.

    `teacher="copy"` keeps a frozen copy of the backbone. `"recorded"` keeps its answers on a fixed dataset instead
    (`record`), which is exact where inputs are not augmented. `"adapter-off"` calls the same model inside peft's
    `disable_adapter()` and stores nothing. `precision="bfloat16"` stores the copy in two bytes per parameter.

    Answers are compared in evaluation mode for teacher and student: with dropout, the student would be trained towards
    its own noise. Features that you pass are used directly if the backbone computes the same in both modes; otherwise
    (dropout, batch normalisation, stochastic depth) the backbone sees the batch a second time in evaluation mode, with
    gradients. The cost is the teacher's forward pass, plus this second pass where it is needed.

    `forward(module, x)` computes the features (or logits) where that is not `module(x)`; see `call` for the default.
    """

    def __init__(
        self,
        backbone: nn.Module,
        heads: Heads = (),
        strength: float = 1.0,
        temperature: float = 2.0,
        of: Of = "answers",
        teacher: Teacher = "copy",
        forward: Forward = call,
        precision: Precision = "float32",
    ) -> None:
        if of not in ("answers", "features", "tokens"):
            raise ValueError(f"of must be one of answers, features, tokens, not {of!r}")
        if teacher not in ("copy", "recorded", "adapter-off"):
            raise ValueError(f"teacher must be one of copy, recorded, adapter-off, not {teacher!r}")
        if precision not in ("float32", "bfloat16"):
            raise ValueError(f"precision must be float32 or bfloat16, not {precision!r}")
        if not (strength >= 0 and math.isfinite(strength)):
            raise ValueError(f"strength must be a finite number of at least 0, not {strength}")
        if not (temperature > 0 and math.isfinite(temperature)):
            raise ValueError(f"temperature must be a finite number above 0, not {temperature}")
        if teacher == "adapter-off" and not callable(getattr(unwrapped(backbone), "disable_adapter", None)):
            raise ValueError("teacher='adapter-off' needs a model with `disable_adapter()`, as peft makes it")
        self.backbone, self.strength, self.temperature = backbone, strength, temperature
        self.of, self.teacher, self.forward, self.precision = of, teacher, forward, precision
        self.heads: list[nn.Module] = []
        self.remembered: nn.Module | None = None
        self.recorded = RecordedAnswers()
        self._second_pass: dict[tuple[bool, ...], bool] = {}
        self.remember(heads)

    def remember(self, heads: Heads = ()) -> None:
        """Makes the current model, with these old heads, the teacher. Recorded answers must be recorded again."""
        given = one_or_many(heads)
        if given and self.of != "answers":
            raise ValueError(f"old heads are used only with of='answers', not with of={self.of!r}")
        self.heads = [frozen_copy(head) for head in given]
        self.remembered = None  # before the next copy is made: one at a time
        self.recorded = RecordedAnswers()
        self._second_pass = {}
        if self.teacher == "copy" and self.active():
            self.remembered = self._copy()

    def _copy(self) -> nn.Module:
        return frozen_copy(unwrapped(self.backbone), torch.bfloat16 if self.precision == "bfloat16" else None)

    def active(self) -> bool:
        """Whether the loss is in use: without old heads, or with strength 0, training is plain."""
        return self.strength > 0 and (self.of != "answers" or bool(self.heads))

    def __call__(self, x: Any, features: Any = None, *, mask: Tensor | None = None, index: Any = None) -> Tensor:
        """The distillation loss on this batch, times the strength; exactly 0 if it is not in use (`active`).

        `features` are those of the training step (for `of="tokens"` its logits, or an output that has them). `index`
        names the samples of recorded answers. `mask` selects the positions that count for `of="tokens"`; by default
        those that `attention_mask` and `labels` in `x` leave.
        """
        if not self.active():
            return torch.zeros((), device=self._device())
        # The student comes first: autocast would cache weights that were cast without gradients.
        student = self._answers(self._of_student(x, features))
        with torch.no_grad():
            teacher = self._of_teacher(x, index)
        if self.of == "features":
            return self.strength * relative_distance(student[0], teacher[0])
        if self.of == "tokens" and mask is None:
            mask = counted_positions(x)
        dimension, pairs = -1 if self.of == "tokens" else 1, zip(student, teacher, strict=True)
        return (
            self.strength * torch.stack([divergence(s, w, self.temperature, dimension, mask) for s, w in pairs]).sum()
        )

    @torch.no_grad()
    def record(self, batches: Iterable[tuple[Any, Any]]) -> None:
        """For `teacher="recorded"`: records the model's current answers to `(index, x)` batches; an index identifies a
        sample."""
        if self.teacher != "recorded":
            raise RuntimeError(f"answers are recorded with teacher='recorded', not with {self.teacher!r}")
        if not self.active():
            return
        inner = unwrapped(self.backbone)
        with evaluating(inner):
            for index, x in batches:
                self.recorded.add(index, self._answers(self.forward(inner, x)))

    def state_dict(self) -> dict[str, Any]:
        """Everything that must survive a restart within a task; loads with `torch.load(..., weights_only=True)`."""
        return {
            "version": STATE_VERSION,
            "of": self.of,
            "teacher": self.teacher,
            "strength": self.strength,
            "temperature": self.temperature,
            "heads": [head.state_dict() for head in self.heads],
            "model": None if self.remembered is None else self.remembered.state_dict(),
            "recorded": self.recorded.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Heads are those given when this object was created; linear heads are re-created."""
        if state.get("version") != STATE_VERSION:
            raise ValueError(f"the state has version {state.get('version')!r}; this release reads {STATE_VERSION}")
        for name in ("of", "teacher"):
            if state[name] != getattr(self, name):
                raise ValueError(f"the state was saved with {name}={state[name]!r}, not {getattr(self, name)!r}")
        heads, model = rebuilt_heads(self.heads, state["heads"], self._device()), None
        if state["model"] is not None:
            model = self.remembered or self._copy()
            try:
                model.load_state_dict(state["model"])
            except RuntimeError as error:
                raise ValueError(f"the remembered model does not fit the backbone: {error}") from None
        self.heads, self.remembered = heads, model
        self.recorded.load_state_dict(state["recorded"])
        self.strength, self.temperature = state["strength"], state["temperature"]

    def _device(self) -> torch.device:
        return next((p.device for p in unwrapped(self.backbone).parameters()), torch.device("cpu"))

    def _answers(self, output: Any) -> list[Tensor]:
        output = getattr(output, "logits", output) if self.of == "tokens" else output
        if not isinstance(output, Tensor):
            raise TypeError(
                f"the backbone returns {type(output).__name__}, not a tensor: pass forward=lambda model, x: ..., which "
                "picks the features"
            )
        if self.of != "answers":
            return [output]
        # A head may change its input in place, so each gets its own copy.
        answers = [head(_in_dtype_of(head, output).clone()) for head in self.heads]
        if any(answer.dim() < 2 or answer.shape[1] < 2 for answer in answers):
            raise ValueError("a head with one output has no distribution to keep: use of='features'")
        return answers

    def _of_student(self, x: Any, features: Any) -> Any:
        inner = unwrapped(self.backbone)
        if features is not None and not self._differs_in_training(inner, x):
            return features
        with evaluating(inner):
            return self.forward(inner, x)

    def _of_teacher(self, x: Any, index: Any) -> list[Tensor]:
        if self.teacher == "recorded":
            return self.recorded.of(index, self._device())
        if self.teacher == "adapter-off":
            model: Any = unwrapped(self.backbone)
            with evaluating(model), model.disable_adapter():
                return self._answers(self.forward(model, x))
        if self.remembered is None:
            raise RuntimeError("there is no teacher: call remember() after the strength was raised from 0")
        remembered = self.remembered.to(self._device())  # the backbone may have been moved since
        return self._answers(self.forward(remembered, _rounded(x) if self.precision == "bfloat16" else x))

    def _differs_in_training(self, inner: nn.Module, x: Any) -> bool:
        """Whether the backbone's output in its current mode differs from that in evaluation mode. Tested once per mode
        on a batch, since dropout is often a function and not a layer.
        """
        modes = tuple(part.training for part in inner.modules())
        if not any(modes):
            return False
        if modes not in self._second_pass:
            with preserved_state(inner):
                random = _random_state(self._device())
                training = self.forward(inner, x)
                drew = not torch.equal(random, _random_state(self._device()))
                with evaluating(inner):
                    evaluated = self.forward(inner, x)
            pairs = zip(self._tensors(training), self._tensors(evaluated), strict=True)
            self._second_pass[modes] = drew or not all(torch.equal(a, b) for a, b in pairs)
        return self._second_pass[modes]

    def _tensors(self, output: Any) -> list[Tensor]:
        output = getattr(output, "logits", output)
        return [output] if isinstance(output, Tensor) else []


def divergence(
    student: Tensor, teacher: Tensor, temperature: float, dimension: int, mask: Tensor | None = None
) -> Tensor:
    """T^2 KL(softmax(teacher / T) || softmax(student / T)), the mean over samples and positions; in float32 at least.

    The factor T^2 keeps the size of its gradient independent of the temperature (Hinton et al., 2015).
    """
    with torch.autocast(student.device.type, enabled=False):
        log_student = F.log_softmax(_wide(student) / temperature, dimension)
        log_teacher = F.log_softmax(_wide(teacher) / temperature, dimension)
        of_each = F.kl_div(log_student, log_teacher, reduction="none", log_target=True).sum(dimension)
        if mask is None:
            return temperature**2 * of_each.mean()
        counted = mask.to(of_each).expand_as(of_each)
        return temperature**2 * (of_each * counted).sum() / counted.sum().clamp(min=1)


def counted_positions(x: Any) -> Tensor | None:
    """Positions of a batch for transformers whose next token counts: not padded, and not left out by the labels."""
    if not isinstance(x, Mapping):
        return None
    counted: Tensor | None = None
    if x.get("attention_mask") is not None:
        counted = x["attention_mask"] != 0
    if x.get("labels") is not None:  # position t answers for the label of t + 1
        labels = F.pad(x["labels"][:, 1:], (0, 1), value=IGNORED) != IGNORED
        counted = labels if counted is None else counted & labels
    return counted


def relative_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """The squared distance of a batch of features in units of their squared norm; in float32 at least."""
    with torch.autocast(student.device.type, enabled=False):
        student, teacher = _wide(student), _wide(teacher)
        return (student - teacher).pow(2).sum() / teacher.pow(2).sum().clamp(min=1e-12)


def _rounded(x: Any) -> Any:
    """A batch with its floating-point tensors in bfloat16."""
    if isinstance(x, Tensor):
        return x.bfloat16() if x.is_floating_point() else x
    if isinstance(x, Mapping):
        return {name: _rounded(value) for name, value in x.items()}
    return tuple(_rounded(each) for each in x) if isinstance(x, tuple) else x


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _in_dtype_of(head: nn.Module, features: Tensor) -> Tensor:
    """Features that were computed under autocast may be passed to a head outside of it."""
    if torch.is_autocast_enabled(features.device.type):
        return features
    return features.to(next((p.dtype for p in head.parameters()), features.dtype))


def _random_state(device: torch.device) -> Tensor:
    state = torch.get_rng_state()
    return torch.cat([state, torch.cuda.get_rng_state(device)]) if device.type == "cuda" else state


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Sets all modules to evaluation mode; afterwards each is in its own mode again."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
