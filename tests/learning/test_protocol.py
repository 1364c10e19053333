"""The protocol: what is measured when, and that nothing leaks between tasks."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from softmask.errors import SoftmaskError
from softmask.learning import evaluating
from softmask.learning.evaluation import accuracy, validate
from softmask.learning.fit import DivergedError
from softmask.learning.protocol import learn_sequence
from softmask.learning.seeds import Seeds, derive
from softmask.learning.task import Batches, Task
from softmask.learning.training import PRESETS, Training
from softmask.testing import InMemoryJournal
from tests.learning.tiny import TinyMethod, tiny_method, tiny_task

SHORT = Training(epochs=2)


def learned(tests: list[Batches] | None) -> InMemoryJournal:
    method = tiny_method(tasks=3)
    tasks = [tiny_task(i) for i in range(3)]
    journal = InMemoryJournal()
    learn_sequence(method, tasks, SHORT, journal, tests=tests)
    return journal


def test_a_row_of_the_matrix_after_each_task() -> None:
    tests = [tiny_task(i).val for i in range(3)]
    measured = [facts for kind, facts in learned(tests).events if kind == "accuracy"]
    assert [(facts["after"], facts["task"]) for facts in measured] == [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    assert all(facts["test"] == facts["validation"] for facts in measured)  # the same images here


def test_without_tests_nothing_but_validation_is_measured() -> None:
    measured = [facts for kind, facts in learned(None).events if kind == "accuracy"]
    assert len(measured) == 6
    assert all("test" not in facts for facts in measured)


class Forgetful(TinyMethod):
    """Wipes every other head at the end of each task: an evaluation that copies old rows would not notice."""

    @torch.no_grad()
    def end_task(self, task) -> None:
        for index, head in enumerate(self.heads):
            if index != task.id:
                head.weight.zero_()
                head.bias.copy_(torch.tensor([1.0, 0.0]))


def test_old_tasks_are_evaluated_again() -> None:
    method = Forgetful(tiny_method(tasks=2).scenario)
    tasks = [tiny_task(i, count=20) for i in range(2)]
    journal = InMemoryJournal()
    learn_sequence(method, tasks, SHORT, journal, tests=[task.val for task in tasks])
    after = {(f["after"], f["task"]): f["test"] for kind, f in journal.events if kind == "accuracy"}
    zeros = (tasks[0].val.y == 0).double().mean().item()
    assert after[1, 0] == pytest.approx(zeros)
    assert after[0, 0] != after[1, 0]


def test_end_of_task_runs_in_eval_mode_on_the_best_weights_and_leaves_no_gradient() -> None:
    seen = []

    class Looker(TinyMethod):
        def end_task(self, task):
            seen.append((self.training, {k: v.clone() for k, v in self.snapshot().items()}))
            self.loss_of_task = self(task.train.x, task.id).sum().backward()
            return {"fact": 1}

    method = Looker(tiny_method().scenario)
    journal = InMemoryJournal()
    learn_sequence(method, [tiny_task()], SHORT, journal, tests=None)
    assert seen[0][0] is False
    assert all(parameter.grad is None for parameter in method.parameters())
    assert [facts["facts"] for kind, facts in journal.events if kind == "task"] == [{"fact": 1}]


def test_a_task_end_that_meets_what_is_not_finite_is_diverged() -> None:
    """Not an error of the program: a search gives such a trial up, and a grid says why."""

    class Overflowing(TinyMethod):
        def end_task(self, task):
            raise FloatingPointError("the gradient of 'fc1' is not finite")

    with pytest.raises(DivergedError, match="tiny 0 diverged: the gradient of 'fc1' is not finite"):
        learn_sequence(Overflowing(tiny_method().scenario), [tiny_task()], SHORT, InMemoryJournal(), tests=None)


def test_accuracy_counts_right_answers_and_restores_modes() -> None:
    method = tiny_method()
    task = tiny_task(count=300)
    method.train()
    method.heads.eval()
    logits = method(task.val.x, 0)
    expected = (logits.argmax(1) == task.val.y).double().mean().item()
    assert accuracy(method, task.val, 0) == pytest.approx(expected)
    assert method.training
    assert not method.heads.training


def test_validation_loss_is_a_mean_over_samples() -> None:
    method, task = tiny_method(), tiny_task(count=200)
    loss, _ = validate(method, task)
    assert loss == pytest.approx(torch.nn.functional.cross_entropy(method(task.val.x, 0), task.val.y).item(), rel=1e-5)


def test_penalty_is_part_of_the_validation_criterion() -> None:
    class Penalised(TinyMethod):
        def penalty(self, step):
            return torch.tensor(3.0)

    task = tiny_task()
    method = tiny_method()
    penalised = Penalised(method.scenario)
    penalised.load_state_dict(method.state_dict())
    assert validate(penalised, task)[0] == pytest.approx(validate(method, task)[0] + 3)


def test_modes_come_back_after_an_error() -> None:
    method = tiny_method().train()
    inside = []

    def fail() -> None:
        with evaluating(method):
            inside.append(method.training)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert inside == [False]
    assert method.training


def test_seeds_have_names_and_do_not_collide() -> None:
    assert Seeds.all_from(7) == Seeds(order=7, split=7, init=7, batches=7)
    assert derive(1, "a") == derive(1, "a") == 6885665436231814845
    assert len({derive(1, "a"), derive(1, "b"), derive(2, "a"), derive("1", "a", "")}) == 4
    assert 0 <= derive("anything") < 2**63


class Drawing(TinyMethod):
    """Notes what dropout would draw first in each task, and what a pass at its end would."""

    def build(self) -> None:
        super().build()
        self.drawn: list[float] = []

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.drawn.append(torch.rand(()).item())

    def end_task(self, task: Task) -> None:
        with self.own_randomness(task):
            self.drawn.append(torch.rand(()).item())


class OtherDrawing(Drawing):
    pass


def drawn(kind: type[Drawing] = Drawing, seed: int = 1) -> list[float]:
    """At the start and at the end of the first task, then of the second."""
    method = kind(replace(tiny_method(tasks=2).scenario, seeds=Seeds(batches=seed)))
    learn_sequence(method, [tiny_task(0), tiny_task(1)], SHORT, InMemoryJournal(), tests=None)
    return method.drawn


def test_draws_follow_from_the_seed_and_the_task() -> None:
    assert drawn() == drawn()
    assert len({*drawn(), *drawn(seed=2)}) == 8


def test_draws_at_the_end_of_a_task_belong_to_the_method_too() -> None:
    """While those of learning are the same for all methods: at strength zero, EWC is NCL to the bit."""
    ours, others = drawn(), drawn(OtherDrawing)
    assert ours[::2] == others[::2]
    assert not set(ours[1::2]) & set(others[1::2])


def order(training: Training, task: int = 0, seed: int = 1) -> list[list[int]]:
    """Of the images in two epochs."""
    scenario = replace(tiny_method(tasks=2).scenario, seeds=Seeds(batches=seed))
    count = 20
    tasks = [replace(tiny_task(i, count=count), name=f"tiny {i}") for i in range(2)]
    batches = TinyMethod(scenario).stages(tasks, training)[task].train
    batches.labels = torch.arange(count)
    return [torch.cat([y for _, y in batches]).tolist() for _ in range(2)]


def test_the_paper_goes_through_the_same_batches_in_every_epoch() -> None:
    first, second = order(PRESETS["paper"])
    assert first == second == list(range(20))


def test_where_batches_are_drawn_anew_the_order_follows_from_the_seed_and_the_task() -> None:
    shuffled = Training(shuffle=True)
    first, second = order(shuffled)
    assert first != second
    assert order(shuffled) == [first, second]
    assert order(shuffled, task=1)[0] != first
    assert order(shuffled, seed=2)[0] != first


@pytest.mark.parametrize("size", [64, 5])
def test_batches_have_the_size_of_the_training(size: int) -> None:
    (stage,) = tiny_method().stages([tiny_task(count=70)], Training(batch=size))
    assert stage.train.size == size


def test_a_task_that_would_be_learned_twice_is_refused() -> None:
    class Twice(TinyMethod):
        def stages(self, tasks: Sequence[Task], training: Training) -> Sequence[Task]:
            return [*super().stages(tasks, training), *tasks[:1]]

    method = Twice(tiny_method(tasks=2).scenario)
    with pytest.raises(SoftmaskError, match=r"Twice\.stages has task 0 2 times"):
        learn_sequence(method, [tiny_task(0), tiny_task(1)], SHORT, InMemoryJournal(), tests=None)


def test_a_fact_that_cannot_be_written_down_is_named() -> None:
    class Telling(TinyMethod):
        def end_task(self, task: Task) -> dict[str, object]:
            return {"good": 1.0, "bad": torch.zeros(2)}

    with pytest.raises(SoftmaskError, match=r"Telling\.end_task returned a fact 'bad'"):
        learn_sequence(Telling(tiny_method().scenario), [tiny_task()], SHORT, InMemoryJournal(), tests=None)
