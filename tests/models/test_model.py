"""A model in a folder: it learns, predicts, tells about itself, and takes over models of others."""

from __future__ import annotations

import json
import shutil
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import TensorDataset

from softmask import ContinualModel
from softmask.errors import DataError, SoftmaskError, UnknownName
from softmask.learning.fit import Fit
from softmask.learning.task import Task
from softmask.learning.training import Training
from softmask.models import model as continual_model
from softmask.models.data import load_image, read_labelled
from softmask.models.folder import ModelFolderError
from softmask.models.inspection import LITTLE_CAPACITY
from softmask.models.learner import OPEN_ENDED, LearnerError
from softmask.models.training import ADAMW
from softmask.storage.lease import FolderBusyError, Lease
from softmask.storage.state_file import read_state, write_state
from tests.models.examples import QUICK, blobs, longer, small_model, write_digits
from tests.pretended_device import DEVICE, pretended_device


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows two tasks, only read."""
    folder = tmp_path_factory.mktemp("models") / "known"
    model = small_model(folder, tasks=0)
    model.learn("left", blobs(0), training=longer(epochs=8), probe=5)
    model.learn("right", blobs(1, classes=3), classes=["low", "middle", "high"], training=longer(epochs=8), probe=4)
    return folder


def test_it_answers_in_another_process_as_in_the_one_that_learned(tmp_path: Path) -> None:
    model = small_model(tmp_path / "m", tasks=2)
    again = ContinualModel.open(tmp_path / "m")
    x = blobs(0)[0]
    assert again.tasks == ("task 0", "task 1")
    for task in (0, 1):
        assert torch.equal(model.probabilities(x, task), again.probabilities(x, task))


def test_learning_apart_is_learning_in_one_go(tmp_path: Path) -> None:
    small_model(tmp_path / "one", tasks=2)
    small_model(tmp_path / "two", tasks=1)
    ContinualModel.open(tmp_path / "two").learn("task 1", blobs(1), training=QUICK)
    x = blobs(0)[0]
    one, two = (ContinualModel.open(tmp_path / name) for name in ("one", "two"))
    assert torch.equal(one.probabilities(x, 0), two.probabilities(x, 0))


@pytest.mark.filterwarnings("ignore:.*to a meta parameter")
def test_on_another_device_it_learns_and_answers_as_on_the_cpu(tmp_path: Path) -> None:
    x, backbone, head = blobs(0)[0], nn.Linear(6, 3), nn.Linear(3, 2)
    adopted = {"network": lambda: nn.Linear(6, 3), "input_shape": (6,)}
    here = small_model(tmp_path / "here", tasks=2)
    ContinualModel.adopt(tmp_path / "adopted", backbone, head, "old", blobs(0), **adopted)
    with pretended_device(continual_model):
        there = small_model(tmp_path / "there", tasks=1, device="pretended")
        ContinualModel.open(tmp_path / "there", device="pretended").learn("task 1", blobs(1), training=QUICK)
        there.learn("task 2", blobs(2), training=QUICK, probe=3)  # after it saw what the other has learned
        assert there.inspect(probe=True).drift[0].changed == 0
        ContinualModel.adopt(
            tmp_path / "there too", backbone.to(DEVICE), head.to(DEVICE), "old", blobs(0), device="pretended", **adopted
        )
    here.learn("task 2", blobs(2), training=QUICK)
    again = ContinualModel.open(tmp_path / "there")
    assert all(torch.equal(here.probabilities(x, task), again.probabilities(x, task)) for task in range(3))
    assert (tmp_path / "there too").exists()


def test_bytes_and_floats_are_not_taken_for_each_other(tmp_path: Path) -> None:
    model = ContinualModel.create(tmp_path / "m", network="mlp", input_shape=(1, 4, 4), width=1 / 16)
    pixels, labels = (torch.arange(40 * 16) % 251).to(torch.uint8).view(40, 1, 4, 4), torch.arange(40) % 2
    model.learn("bytes", (pixels, labels), training=QUICK)
    model.learn("floats", (pixels.float() / 255, labels), training=QUICK)
    again = ContinualModel.open(tmp_path / "m")
    assert [task.inputs for task in again.config.tasks] == ["bytes", "floats"]
    assert again.predict(pixels[:1], task="bytes")
    for inputs, task in ((pixels, "floats"), (pixels.float(), "bytes")):
        with pytest.raises(DataError, match=f"'{task}' was learned from {task}, these are"):
            again.predict(inputs, task=task)


def test_without_a_task_those_answer_that_were_taught_with_such_inputs(tmp_path: Path) -> None:
    model = ContinualModel.create(tmp_path / "m", network="mlp", input_shape=(1, 4, 4), width=1 / 16)
    pixels, labels = (torch.arange(40 * 16) % 251).to(torch.uint8).view(40, 1, 4, 4), torch.arange(40) % 2
    model.learn("bytes", (pixels, labels), training=QUICK)
    with pytest.raises(DataError, match="'bytes' was learned from bytes, these are floats"):
        model.predict(pixels[:1].float())
    model.learn("floats", (pixels.float() / 255, labels), training=QUICK)
    assert [answer.task for answer in model.predict(pixels[:2])] == ["bytes", "bytes"]
    assert [answer.task for answer in model.predict(pixels[:2].float())] == ["floats", "floats"]


def test_bytes_are_not_validated_with_floats(tmp_path: Path) -> None:
    model = ContinualModel.create(tmp_path / "m", network="mlp", input_shape=(1, 4, 4), width=1 / 16)
    pixels, labels = torch.zeros(40, 1, 4, 4, dtype=torch.uint8), torch.arange(40) % 2
    with pytest.raises(DataError, match="trained with bytes but validated with floats"):
        model.learn("mixed", (pixels, labels), val=(pixels.float(), labels))


def test_an_image_is_the_same_from_a_dataset_and_from_its_file(tmp_path: Path) -> None:
    deep = Image.fromarray(np.full((4, 4), 32768, dtype=np.uint16))
    clear = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    for name, image in (("deep.png", deep), ("clear.png", clear)):
        image.save(tmp_path / name)
        with Image.open(tmp_path / name) as opened:
            given = read_labelled([(opened, 0), (opened, 1)], (3, 4, 4)).inputs[0]
        assert torch.equal(given, load_image(str(tmp_path / name), (3, 4, 4))), name


@pytest.mark.parametrize("method", OPEN_ENDED)
@pytest.mark.parametrize("count", [61, 65])
def test_a_last_batch_of_one_does_not_stop_batch_normalisation(tmp_path: Path, method: str, count: int) -> None:
    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))

    model = ContinualModel.create(tmp_path / "m", network=network, input_shape=(6,), method=method)
    x, y = blobs(0, count=count)
    model.learn("one", (x, y), val=blobs(1), training=QUICK)
    assert model.tasks == ("one",)


def test_names_of_classes_are_checked_before_training(tmp_path: Path) -> None:
    model = small_model(tmp_path / "m", tasks=1)
    with pytest.raises(DataError, match="a class's name is 1 to 200 printable characters"):
        model.learn("latin", blobs(1), classes=["caf\udce9", "tea"])
    assert ContinualModel.open(tmp_path / "m").tasks == ("task 0",)


@pytest.mark.parametrize("source", [[torch.zeros(6)], 3, {"x": 1}])
def test_what_cannot_be_predicted_from(tmp_path: Path, source: object) -> None:
    with pytest.raises(DataError, match="tensor of inputs"):
        small_model(tmp_path / "m").predict(source)


def test_an_array_is_as_good_as_a_tensor(known: Path) -> None:
    x = blobs(0)[0]
    model = ContinualModel.open(known)
    assert model.predict(x.numpy(), task="left") == model.predict(x, task="left")


def test_predictions_have_names_and_probabilities(known: Path) -> None:
    x, y = blobs(1, classes=3)
    found = ContinualModel.open(known).predict(x, task="right")
    assert [prediction.item for prediction in found[:2]] == ["0", "1"]
    for prediction in found:
        assert set(prediction.probabilities) == {"low", "middle", "high"}
        assert sum(prediction.probabilities.values()) == pytest.approx(1, abs=1e-5)
        assert (
            prediction.confidence
            == max(prediction.probabilities.values())
            == prediction.probabilities[prediction.label]
        )
    names = ["low", "middle", "high"]
    assert sum(p.label == names[label] for p, label in zip(found, y.tolist(), strict=True)) > 50


def test_without_a_task_it_is_found_and_the_answer_says_how_surely(known: Path) -> None:
    model = ContinualModel.open(known)
    for place, (task, classes) in enumerate((("left", 2), ("right", 3))):
        inputs = blobs(place, classes=classes)[0]
        found = model.predict(inputs)
        assert len(found) == len(inputs)
        assert sum(answer.task == task for answer in found) > 0.8 * len(found)
        assert all(answer.task_share is not None and 0.5 <= answer.task_share <= 1 for answer in found)
        told = {answer.item: answer for answer in model.predict(inputs, task=task)}
        assert all(answer.label == told[answer.item].label for answer in found if answer.task == task)
        assert all(answer.task_share is None for answer in told.values())


def test_in_a_folder_of_an_earlier_release_every_head_answers_and_a_warning_says_so(
    known: Path, tmp_path: Path
) -> None:
    shutil.copytree(known, tmp_path / "old")
    (statistics,) = (tmp_path / "old").glob("statistics-*")
    statistics.unlink()
    model = ContinualModel.open(tmp_path / "old")
    with pytest.warns(UserWarning, match="no task was named"):
        found = model.predict(blobs(0)[0][:2])
    assert [(p.item, p.task) for p in found] == [("0", "left"), ("0", "right"), ("1", "left"), ("1", "right")]
    model.learn("third", blobs(2), training=QUICK)
    assert not list((tmp_path / "old").glob("statistics-*")), "the images of the first tasks are gone"


def test_statistics_that_do_not_fit_are_refused(known: Path, tmp_path: Path) -> None:
    shutil.copytree(known, tmp_path / "bad")
    (file,) = (tmp_path / "bad").glob("statistics-*")
    state = read_state(file)
    for name, value in (
        ("scatter", torch.eye(3)),
        ("scatter", state["scatter"] * torch.nan),
        ("tasks", state["tasks"] + 1),
    ):
        write_state(file, {**state, name: value})
        with pytest.raises(ModelFolderError):
            ContinualModel.open(tmp_path / "bad")
    write_state(file, {**state, "scatter": -100 * state["scatter"]})
    with pytest.raises(ModelFolderError):
        ContinualModel.open(tmp_path / "bad").predict(blobs(0)[0][:2])


def test_a_task_is_found_after_another_was_removed(known: Path, tmp_path: Path) -> None:
    shutil.copytree(known, tmp_path / "m")
    model = ContinualModel.open(tmp_path / "m")
    model.learn("third", blobs(2), training=QUICK)
    model.remove("left")
    for each in (model, ContinualModel.open(tmp_path / "m")):
        assert {answer.task for answer in each.predict(blobs(1, classes=3)[0])} >= {"right"}


def test_inspection_tells_tasks_importance_capacity_and_size(known: Path) -> None:
    found = ContinualModel.open(known).inspect()
    assert [task.name for task in found.tasks] == ["left", "right"]
    assert [task.samples for task in found.tasks] == [54, 54]
    assert all(task.accuracy > 0.8 for task in found.tasks)
    assert set(found.importance) == {"fc1", "fc2"}
    assert found.free_capacity is not None
    assert 0 < found.free_capacity < 1
    assert found.free_capacity == found.tasks[-1].free_capacity
    assert found.bytes == sum(file.stat().st_size for file in known.iterdir())
    assert found.parameters == 6 * 32 + 32 + 32 * 32 + 32 + 5 * 32 + 5
    assert json.loads(json.dumps(found.to_dict()))["network"] == "mlp"


def test_probe_tells_how_answers_changed(known: Path, tmp_path: Path) -> None:
    left, right = ContinualModel.open(known).inspect(probe=True).drift
    assert (left.samples, right.samples) == (5, 4)
    assert right.moved == right.changed == 0, "nothing was learned since"
    assert 0 < left.moved < 0.5
    with pytest.raises(SoftmaskError, match="kept no samples"):
        small_model(tmp_path / "m").inspect(probe=True)


def test_history_has_a_line_for_everything(known: Path) -> None:
    events = [json.loads(line) for line in (known / "history.jsonl").read_text().splitlines()]
    assert [event["kind"] for event in events] == ["created", "learned", "learned"]
    assert sorted(file.name for file in known.glob("generation-*")) == ["generation-000002.safetensors"]


def test_a_dataset_teaches_the_same_as_its_tensors(tmp_path: Path) -> None:
    x, y = blobs(0)
    one = ContinualModel.create(tmp_path / "one", "mlp", (6,), width=1 / 16)
    two = ContinualModel.create(tmp_path / "two", "mlp", (6,), width=1 / 16)
    one.learn("t", (x, y), training=QUICK)
    two.learn("t", TensorDataset(x, y), training=QUICK)
    assert torch.equal(one.probabilities(x, 0), two.probabilities(x, 0))


def test_a_given_validation_set_is_used(tmp_path: Path) -> None:
    x, y = blobs(0)
    model = ContinualModel.create(tmp_path / "m", "mlp", (6,), width=1 / 16)
    facts = model.learn("t", (x, y), (x[:10], 1 - y[:10]), training=QUICK)
    assert facts.samples == 60
    assert facts.accuracy < 0.5, "its labels are all wrong"


def test_trains_are_a_class_like_any_other(tmp_path: Path) -> None:
    for name, shade in (("bus", 40), ("train", 200)):
        (tmp_path / "vehicles" / name).mkdir(parents=True)
        for number in range(4):
            Image.new("L", (8, 8), shade + number).save(tmp_path / "vehicles" / name / f"{number}.png")
    model = ContinualModel.create(tmp_path / "model", network="mlp", input_shape=(1, 8, 8), width=1 / 16)
    model.learn("vehicles", tmp_path / "vehicles", training=QUICK)
    assert tuple(model.config.tasks[0].classes) == ("bus", "train")


@pytest.mark.parametrize("network", ["alexnet", "resnet18"])
def test_images_in_folders(tmp_path: Path, network: str) -> None:
    root = write_digits(tmp_path / "digits", each=20)
    model = ContinualModel.create(tmp_path / "m", network, (1, 28, 28), width=1 / 16)
    model.learn("first", root / "train" / "first", training=longer(epochs=1))
    found = model.predict([root / "test" / "first" / "0", root / "test" / "first" / "1" / "4.png"], task="first")
    assert [p.item.rsplit("/", 2)[-2] for p in found] == ["0", "0", "0", "0", "1"]
    assert set(found[0].probabilities) == {"0", "1", "2"}


def test_images_are_brought_to_size_and_colour(tmp_path: Path) -> None:
    model = ContinualModel.create(tmp_path / "m", "alexnet", (3, 16, 20), width=1 / 16)
    for shade in (40, 200):
        for index in range(4):
            (tmp_path / "t" / str(shade)).mkdir(parents=True, exist_ok=True)
            Image.new("L", (50, 30), shade + index).save(tmp_path / "t" / str(shade) / f"{index}.png")
    assert model.learn("shades", tmp_path / "t", training=longer(epochs=1)).samples == 6


def test_mistakes_are_told_and_change_nothing(tmp_path: Path) -> None:
    model = small_model(tmp_path / "m")
    before = {file.name: file.read_bytes() for file in (tmp_path / "m").iterdir()}
    x, y = blobs(3)
    for mistake, error, message in [
        (lambda: model.learn("task 0", (x, y)), SoftmaskError, "'task 0' already"),
        (lambda: model.learn("", (x, y)), SoftmaskError, "1 to 200 printable"),
        (lambda: model.learn("t", (x[:, :3], y)), DataError, r"shape \(6,\), these are \(3,\)"),
        (lambda: model.learn("t", (x, y * 0)), DataError, "at least two classes"),
        (lambda: model.learn("t", (x, y), classes=["one"]), DataError, "do not fit 1"),
        (lambda: model.learn("t", (x, y), classes=["one", "one"]), DataError, "two classes are called 'one'"),
        (lambda: model.learn("t", (x, y), probe=-1), SoftmaskError, "probe"),
        (lambda: model.learn("t", (x, y), probe=True), SoftmaskError, "probe"),
        (lambda: model.learn(3, (x, y)), SoftmaskError, "printable characters, not 3"),  # type: ignore[arg-type]
        (lambda: model.learn("t", (x * torch.inf, y)), DataError, "not finite"),
        (lambda: model.learn("t", (x, y), (x, y + 1)), DataError, "'2'"),
        (lambda: model.learn("t", tmp_path / "nowhere"), DataError, "no such folder"),
        (lambda: model.learn("t", 3), DataError, "expected a folder"),
        (lambda: model.predict(x, task="task 9"), UnknownName, "did you mean 'task 0'"),
        (lambda: ContinualModel.create(tmp_path / "m"), SoftmaskError, "holds a model already"),
        (lambda: ContinualModel.create(tmp_path / "n", "alexnett"), UnknownName, "did you mean 'alexnet'"),
        (
            lambda: ContinualModel.create(tmp_path / "n", method="hat"),
            LearnerError,
            "hat .*spg",
        ),
        (lambda: ContinualModel.create(tmp_path / "n", input_shape=(3, 4, 4)), SoftmaskError, "too small"),
        (lambda: ContinualModel.create(tmp_path / "n", settings={"strenth": 1}), SoftmaskError, "no setting 'strenth'"),
    ]:
        with pytest.raises(error, match=message):
            mistake()
    assert {file.name: file.read_bytes() for file in (tmp_path / "m").iterdir()} == before
    assert not (tmp_path / "n" / "config.json").exists()


def test_the_second_who_learns_is_refused_while_the_first_does(tmp_path: Path) -> None:
    model = small_model(tmp_path / "m")
    with Lease(tmp_path / "m"), pytest.raises(FolderBusyError, match="being written by process"):
        model.learn("task 1", blobs(1), training=QUICK)
    model.learn("task 1", blobs(1), training=QUICK)


def test_a_model_learns_on_what_another_object_learned(tmp_path: Path) -> None:
    model = small_model(tmp_path / "m")
    ContinualModel.open(tmp_path / "m").learn("between", blobs(1), training=QUICK)
    model.learn("after", blobs(2), training=QUICK)
    assert model.tasks == ContinualModel.open(tmp_path / "m").tasks == ("task 0", "between", "after")


def test_reading_while_another_learns_always_gives_a_whole_model(tmp_path: Path) -> None:
    model = small_model(tmp_path / "m")
    stop = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        while not stop.is_set():
            try:
                ContinualModel.open(tmp_path / "m")
            except BaseException as error:
                failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for index in range(1, 6):
        model.learn(f"task {index}", blobs(index), training=longer(epochs=1))
    stop.set()
    reader.join()
    assert not failures


def test_a_warning_before_the_capacity_is_used_up(tmp_path: Path) -> None:
    model = small_model(tmp_path / "m", tasks=0)
    free: list[float] = []
    for index in range(12):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            free.append(model.learn(f"task {index}", blobs(index), training=longer(epochs=1)).free_capacity or 0.0)
        if told := [str(warning.message) for warning in caught]:
            assert "capacity is free" in told[0]
            break
    assert free == sorted(free, reverse=True)
    assert free[-2] >= LITTLE_CAPACITY, "not too late"


def own_network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU())


def trained_elsewhere() -> tuple[nn.Module, nn.Linear]:
    torch.manual_seed(0)
    backbone, head = own_network(), nn.Linear(24, 2)
    optimizer = torch.optim.Adam([*backbone.parameters(), *head.parameters()], lr=0.01)
    x, y = blobs(7)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(backbone(x)), y).backward()
        optimizer.step()
    return backbone, head


def test_adopt_protects_what_a_model_of_others_knows(tmp_path: Path) -> None:
    backbone, head = trained_elsewhere()
    x, y = blobs(7)
    model = ContinualModel.adopt(
        tmp_path / "m", backbone, head, "old", (x, y), network=own_network, input_shape=(6,), classes=["no", "yes"]
    )
    expected = head(backbone.eval()(x)).softmax(1)
    torch.testing.assert_close(model.probabilities(x, 0), expected.detach())
    assert model.config.tasks[0].accuracy > 0.9
    for index in range(3):
        model.learn(f"new {index}", blobs(index), training=longer(epochs=6))
    right = sum(p.label == ("no", "yes")[label] for p, label in zip(model.predict(x, "old"), y.tolist(), strict=True))
    assert right > 50
    assert ContinualModel.open(tmp_path / "m", own_network).tasks == model.tasks


def test_adopt_refuses_what_does_not_fit(tmp_path: Path) -> None:
    backbone, head = trained_elsewhere()
    data = blobs(7)
    with pytest.raises(SoftmaskError, match="does not make the backbone"):
        ContinualModel.adopt(tmp_path / "m", backbone, head, "old", data, network="mlp", input_shape=(6,))
    with pytest.raises(SoftmaskError, match=r"must be an nn\.Linear"):
        ContinualModel.adopt(
            tmp_path / "m", backbone, nn.Linear(24, 5), "old", data, network=own_network, input_shape=(6,)
        )
    with pytest.raises(SoftmaskError, match="cannot measure"):
        ContinualModel.adopt(
            tmp_path / "m", backbone, head, "old", data, network=own_network, input_shape=(6,), method="ncl"
        )
    assert not (tmp_path / "m" / "config.json").exists()


def test_statistics_of_batch_norm_stay_after_the_first_task(tmp_path: Path) -> None:
    model = ContinualModel.create(tmp_path / "m", own_network, (6,))
    model.learn("first", blobs(0), training=QUICK)
    before = model._method.backbone[1].running_mean.clone()  # type: ignore[index,union-attr]
    assert before.abs().max() > 0, "the first task sets them"
    model.learn("second", blobs(1), training=QUICK)
    assert torch.equal(model._method.backbone[1].running_mean, before)  # type: ignore[index,union-attr]


def test_a_field_of_the_training_leaves_the_others_at_the_folders_defaults(tmp_path: Path) -> None:
    rates: list[tuple[float, int]] = []

    def watch(_: Task, fit: Fit) -> None:
        rates.append((fit.training.lr, fit.training.epochs))

    model = ContinualModel.create(tmp_path / "m", "mlp", (6,), width=1 / 16)
    model.learn("a", blobs(0), training=Training(epochs=2), watch=watch)
    model.learn("b", blobs(1), training=Training(epochs=2), watch=watch)
    model.learn("c", blobs(2), training=Training(epochs=2, lr=0.25), watch=watch)
    assert set(rates) == {(ADAMW.lr, 2), (0.25, 2)}, "a value that is given counts, even the paper's"
    with pytest.raises(SoftmaskError, match="lr_min"):
        model.learn("d", blobs(3), training=Training(lr_min=0.1))


def test_adopt_keeps_classes_that_the_sample_lacks(tmp_path: Path) -> None:
    torch.manual_seed(0)
    backbone, head = own_network(), nn.Linear(24, 3)
    x, y = blobs(7)
    model = ContinualModel.adopt(
        tmp_path / "m",
        backbone,
        head,
        "old",
        (x, 2 * y),
        network=own_network,
        input_shape=(6,),
        classes=["a", "b", "c"],
    )
    assert model.config.tasks[0].classes == ("a", "b", "c")
    expected = head(backbone.eval()(x)).softmax(1).detach()
    torch.testing.assert_close(model.probabilities(x, task="old"), expected)


@pytest.mark.parametrize("sample", [blobs(7)[0], blobs(7)[0].numpy(), []])
def test_adopt_without_labels_is_refused_in_words(tmp_path: Path, sample: object) -> None:
    backbone, head = trained_elsewhere()
    with pytest.raises(DataError, match=r"labels|samples"):
        ContinualModel.adopt(tmp_path / "m", backbone, head, "old", sample, network=own_network, input_shape=(6,))


def test_normalisation_can_be_set_and_adopt_warns_of_the_default(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (20, 3, 4, 4), dtype=torch.uint8, generator=generator)
    torch.manual_seed(0)
    backbone, head, labels = small_images(), nn.Linear(5, 2), torch.arange(20) % 2
    known = {"network": small_images, "input_shape": (3, 4, 4)}
    model = ContinualModel.adopt(
        tmp_path / "m", backbone, head, "old", (x, labels), mean=(0, 0, 0), std=(1, 1, 1), **known
    )  # type: ignore[arg-type]
    torch.testing.assert_close(model.probabilities(x, 0), head(backbone(x / 255)).softmax(1).detach())
    with pytest.warns(UserWarning, match="std="):
        ContinualModel.adopt(tmp_path / "other", backbone, head, "old", (x, labels), **known)  # type: ignore[arg-type]
    for wrong in ({"mean": (0,)}, {"mean": (0,), "std": (1,)}, {"mean": (0, 0, 0), "std": (1, 0, 1)}):
        with pytest.raises(SoftmaskError, match="std"):
            ContinualModel.create(tmp_path / "new", small_images, (3, 4, 4), **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, True),
        ({"inputs": torch.zeros(4, 3, 4, 4, dtype=torch.uint8)}, True),
        ({"inputs": torch.zeros(4, 3, 4, 4)}, False),
        ({"mean": (0, 0, 0), "std": (1, 1, 1)}, False),
    ],
    ids=["alone", "bytes", "floats", "set"],
)
def test_adopt_without_labels_warns_of_the_default_normalisation(
    given: dict[str, Any], told: bool, tmp_path: Path
) -> None:
    known = {"network": small_images, "input_shape": (3, 4, 4), **given}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ContinualModel.adopt(tmp_path / "m", small_images(), nn.Linear(5, 2), "old", **known)
    assert any("std=" in str(each.message) for each in caught) is told


def small_images() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 5))


def test_a_task_is_named_or_counted(tmp_path: Path) -> None:
    model = small_model(tmp_path / "m", tasks=2)
    x = blobs(0)[0]
    assert torch.equal(model.probabilities(x, task="task 1"), model.probabilities(x, 1))
    with pytest.raises(UnknownName):
        model.probabilities(x, task="nothing")
    with pytest.raises(SoftmaskError):
        model.probabilities(x, 2)
