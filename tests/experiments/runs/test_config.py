"""A config decides the run's name, and a wrong one never becomes a run."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest

from softmask.errors import ConfigError, SoftmaskError, UnknownName
from softmask.experiments.runs import config as config_file
from softmask.experiments.runs.config import RunConfig, make_config, read_config
from softmask.experiments.sequences import sequence_facts
from softmask.learning.method import BackboneMismatch
from softmask.learning.registry import METHODS
from softmask.learning.scenario import NetworkConfig
from softmask.learning.seeds import Seeds
from softmask.learning.training import PRESETS, Training

BASE = make_config("spg", "D-5", preset="short", tasks=2)


def changed(section: str, field: str, value: Any) -> dict[str, Any]:
    raw = BASE.to_dict()
    raw[section][field] = value
    return raw


def test_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        BASE.method = "ncl"  # type: ignore[misc]


def test_equal_configs_have_equal_ids() -> None:
    again = make_config("spg", "D-5", preset="short", tasks=2)
    assert again == BASE
    assert again.id() == BASE.id()


def test_whole_numbers_and_floats_are_the_same_value() -> None:
    whole = RunConfig(method="ncl", sequence="D-5", training=Training(lr=1), network=NetworkConfig(width=1))
    broken = RunConfig(method="ncl", sequence="D-5", training=Training(lr=1.0), network=NetworkConfig(width=1.0))
    assert whole == broken
    assert whole.id() == broken.id()


def test_survives_json() -> None:
    config = make_config("spg", "R-10", seed=7, changes={"lr": 0.1, "importance_dropout": False, "seeds.order": 3})
    back = RunConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert back == config
    assert back.id() == config.id()


OTHER_VALUES: list[tuple[str, Any]] = [
    *((f"training.{name}", 7) for name in ("lr", "lr_factor", "patience", "epochs", "batch")),
    ("training.lr_min", 0.1),
    *(("training.joint_batch", 7), ("training.joint_epochs", 7), ("training.shuffle", False)),
    *(("training.schedule", "plateau"), ("training.precision", "bf16"), ("training.first_epochs", 7)),
    *(("training.warmup_epochs", 1), ("training.augment", "crop-flip")),
    *(("training.optimizer", "adamw"), ("training.weight_decay", 0.1)),
    *((f"network.{name}", 0.75) for name in ("width", "drop1", "drop2")),
    *(("network.name", "resnet18"), ("network.norm", "batch"), ("network.weights", "weights.pt#0123456789ab")),
    *((f"seeds.{name}", 7) for name in ("order", "split", "init", "batches")),
    ("settings.importance_dropout", False),
]


@pytest.mark.parametrize("name", ["spg", "a-gem"])
def test_fields_that_came_later_leave_the_ids_of_earlier_runs_alone(name: str) -> None:
    earlier = {"spg": "spg_C-10_3682821160b9", "a-gem": "a-gem_C-10_a3e2ec952ed8"}
    rates = {"drop1": 0.313456, "drop2": 0.409306}  # once the default of every method
    assert make_config(name, "C-10", seed=3, changes=rates).id() == earlier[name]


def test_dropout_and_width_of_a_network_that_has_none() -> None:
    network = make_config("spg", "C-10", changes={"network.name": "resnet18"}).network
    assert (network.drop1, network.drop2, network.width) == (0, 0, 1)
    assert make_config("spg", "C-10", changes={"network.name": "mlp", "drop2": 0.5}).network.drop2 == 0.5
    for changes in (
        {"network.name": "resnet18", "drop1": 0.2},
        {"network.name": "mlp", "drop1": 0.2},
        {"network.name": "timm:resnet10t", "width": 0.5},
        {"network.name": "vit-tiny", "norm": "batch"},
        {"network.name": "mlp", "norm": "batch"},
    ):
        with pytest.raises(ConfigError):
            make_config("spg", "C-10", changes=changes)


def test_the_reference_on_another_network_is_on_that_network() -> None:
    config = make_config("lwf", "D-5", changes={"network.name": "resnet18"})
    assert config.of_method("one") == make_config("one", "D-5", changes={"network.name": "resnet18"})


@pytest.mark.parametrize("method", ["hat", "cat", "pgn", "pathnet", "ucl"])
def test_a_network_that_does_not_fit_is_refused(method: str) -> None:
    for network in ("resnet18", "vit-tiny", "timm:resnet10t"):
        with pytest.raises(BackboneMismatch):
            make_config(method, "D-5", changes={"network.name": network})
    assert make_config(method, "D-5", changes={"network.name": "mlp"}).network.name == "mlp"


@pytest.mark.parametrize("name", METHODS.names())
def test_a_method_has_the_dropout_rates_of_its_own_authors(name: str) -> None:
    facts = sequence_facts("C-10")
    own = METHODS.load(name).default_dropout
    network = make_config(name, "C-10").network
    assert (network.drop1, network.drop2) == ((facts.drop1, facts.drop2) if own is None else own)


def test_rates_searched_for_spg_are_no_default_of_another_system() -> None:
    tuned = make_config("spg", "C-10").network
    for name in ("hat", "cat", "wsn", "pgn", "pathnet", "supsup", "ucl", "si", "ewc", "tag", "a-gem"):
        assert make_config(name, "C-10").network != tuned


def test_another_method_gets_its_own_defaults_and_what_was_chosen_for_all() -> None:
    usual = make_config("pgn", "C-10", seed=3, tasks=2)
    assert usual.of_method("one") == make_config("one", "C-10", seed=3, tasks=2)
    chosen = make_config("pgn", "C-10", changes={"drop1": 0.3, "drop2": 0.0, "settings.lr": 0.1})
    assert chosen.of_method("one") == make_config("one", "C-10", changes={"drop1": 0.3, "drop2": 0.0})


def test_every_field_is_tried_below() -> None:
    raw = BASE.to_dict()
    fields = {f"{section}.{key}" for section in ("training", "network", "seeds", "settings") for key in raw[section]}
    assert {name for name, _ in OTHER_VALUES} == fields


@pytest.mark.parametrize(("name", "value"), OTHER_VALUES)
def test_any_other_value_gives_another_id(name: str, value: Any) -> None:
    needed = {"training.weight_decay": {"optimizer": "adamw"}, "network.norm": {"network.name": "resnet18"}}.get(
        name, {}
    )
    base, other = (
        make_config("spg", "D-5", preset="short", tasks=2, changes=needed | changes) for changes in ({}, {name: value})
    )
    section, field = name.split(".")
    assert other.to_dict()[section][field] == value
    assert other.digest() != base.digest()


def test_normalisation_follows_the_sequence_and_is_new_in_ids() -> None:
    assert make_config("gpm", "C-10-GPM", preset="gpm").network.norm == "batch"
    plain = make_config("gpm", "D-5", preset="short")
    assert plain.network.norm is None
    without = plain.to_dict()
    del without["network"]["norm"]  # as runs of earlier versions were stored
    assert RunConfig.from_dict(without).id() == plain.id()
    assert make_config("gpm", "D-5", preset="short", changes={"norm": "batch"}).id() != plain.id()


def test_method_sequence_and_tasks_are_in_the_id() -> None:
    others = [
        make_config("ncl", "D-5", preset="short", tasks=2),
        make_config("spg", "R-10", preset="short", tasks=2),
        make_config("spg", "D-5", preset="short", tasks=3),
        make_config("spg", "D-5", preset="short"),
    ]
    assert len({BASE.digest(), *(other.digest() for other in others)}) == 5
    assert BASE.id().startswith("spg_D-5_")


def test_an_id_is_one_folder_even_if_the_sequence_is_named_by_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = sequence_facts("D-5")
    monkeypatch.setattr(config_file, "sequence_facts", lambda _: facts)
    configs = [RunConfig(method="spg", sequence=name) for name in ("folder:/pets/../cats", "folder:pets-cats", "D-5")]
    ids = [config.id() for config in configs]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in ids)
    assert len(set(ids)) == 3
    assert ids[2].startswith("spg_D-5_")


@pytest.mark.parametrize(
    ("raw", "right"),
    [
        ({**BASE.to_dict(), "methd": "spg"}, "method"),
        (changed("training", "epoch", 3), "epochs"),
        (changed("network", "widht", 0.5), "width"),
        (changed("seeds", "ordre", 3), "order"),
        (changed("settings", "importance_dropuot", True), "importance_dropout"),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest_name(raw: dict[str, Any], right: str) -> None:
    with pytest.raises(ConfigError, match=f"there is no field .*did you mean '{right}'"):
        RunConfig.from_dict(raw)


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        ({**BASE.to_dict(), "tasks": "2"}, "tasks"),
        ({**BASE.to_dict(), "method": 3}, "method"),
        ({**BASE.to_dict(), "training": 3}, "training"),
        ({**BASE.to_dict(), "settings": [1]}, "settings"),
        (changed("training", "lr", "high"), "training.lr"),
        (changed("training", "epochs", 2.5), "training.epochs"),
        (changed("training", "shuffle", 1), "training.shuffle"),
        (changed("training", "schedule", "cosin"), "training.schedule"),
        (changed("network", "width", None), "network.width"),
        (changed("seeds", "order", 1.5), "seeds.order"),
        (changed("settings", "importance_dropout", "yes"), "importance_dropout"),
    ],
)
def test_an_ill_typed_field_is_named(raw: dict[str, Any], place: str) -> None:
    with pytest.raises(ConfigError, match=f"{place}: .*not "):
        RunConfig.from_dict(raw)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"training.lr": 1e-4}, "lr_min must not be above lr, but 0.001 is more than 0.0001: set both"),
        ({"joint_epochs": 0}, "joint_epochs must be above 0, or null for `epochs`, not 0"),
        ({"joint_epochs": -3}, "joint_epochs must be above 0"),
    ],
)
def test_a_training_that_cannot_be_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        make_config("ncl", "D-5", preset="short", changes=changes)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), object()])
def test_what_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError):
        RunConfig.from_dict(changed("training", "lr", value))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 0}, "width must lie above 0"),
        ({"width": 9}, "width must lie above 0"),
        ({"drop1": 1.0}, "drop1 must lie in 0..1"),
        ({"drop2": -0.1}, "drop2 must lie in 0..1"),
        ({"epochs": 0}, "epochs must be above 0"),
        ({"lr": -1}, "lr must be above 0"),
        ({"order": -1}, "seeds.order: a seed must be 0 or more, not -1"),
        ({"init": -5}, "seeds.init: a seed must be 0 or more, not -5"),
    ],
)
def test_values_out_of_range_are_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config("spg", "D-5", changes=changes)
    assert message in str(caught.value)
    assert "{" not in str(caught.value), "only the field in question is told, not the whole section"


def test_all_tasks_by_number_are_all_tasks() -> None:
    assert make_config("spg", "D-5", tasks=5).id() == make_config("spg", "D-5").id()


@pytest.mark.parametrize("tasks", [0, -1, 6])
def test_the_number_of_tasks_must_fit_the_sequence(tasks: int) -> None:
    with pytest.raises(ConfigError, match=r"D-5 has 5 tasks: tasks must be in 1\.\.5"):
        make_config("spg", "D-5", tasks=tasks)


def test_negative_seeds_are_refused_however_the_config_is_made() -> None:
    with pytest.raises(ConfigError, match="seed"):
        RunConfig(method="spg", sequence="D-5", seeds=Seeds(split=-1))
    with pytest.raises(ConfigError, match="seed"):
        make_config("spg", "D-5", seed=-1)


@pytest.mark.parametrize(
    ("names", "kind", "right"),
    [
        ({"method": "spgg"}, "method", "spg"),
        ({"sequence": "D5"}, "sequence", "D-5"),
        ({"preset": "papr"}, "preset", "paper"),
    ],
)
def test_a_wrong_name_is_told_with_the_nearest(names: dict[str, str], kind: str, right: str) -> None:
    wanted = {"method": "spg", "sequence": "D-5", "preset": "short", **names}
    with pytest.raises(UnknownName, match=f"unknown {kind} .*did you mean '{right}'"):
        make_config(wanted["method"], wanted["sequence"], preset=wanted["preset"])


def test_a_change_may_be_named_in_full_or_by_its_last_part() -> None:
    short = make_config("spg", "D-5", changes={"epochs": 3, "width": 0.5, "importance_dropout": False})
    full = make_config(
        "spg",
        "D-5",
        changes={"training.epochs": 3, "network.width": 0.5, "settings.importance_dropout": False},
    )
    assert short == full
    assert (short.training.epochs, short.network.width) == (3, 0.5)


@pytest.mark.parametrize(("wrong", "right"), [("epoch", "epochs"), ("training.epoch", "epochs"), ("widht", "width")])
def test_an_unknown_change_is_refused_with_the_nearest_name(wrong: str, right: str) -> None:
    with pytest.raises(ConfigError, match=f"there is no field '{wrong}': did you mean .*{right}'"):
        make_config("spg", "D-5", changes={wrong: 1})


def test_settings_of_other_packages_need_not_refuse_unknown_fields_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    from softmask.methods.spg import SPG

    @dataclasses.dataclass(frozen=True)
    class Lenient:
        strength: float = 1.0

    monkeypatch.setattr(SPG, "Settings", Lenient)
    with pytest.raises(SoftmaskError, match="there is no field 'strenght': did you mean 'strength'"):
        RunConfig(method="spg", sequence="D-5", settings={"strenght": 2.0})


@dataclasses.dataclass(frozen=True)
class Unresolved:
    strength: NoSuchType = 1.0  # noqa: F821


@dataclasses.dataclass(frozen=True)
class Failing:
    strength: float = 1.0

    def __post_init__(self) -> None:
        if self.strength > 1:
            raise TypeError("that was too much")


@pytest.mark.parametrize(("settings", "said"), [(Unresolved, "cannot be checked"), (Failing, "that was too much")])
def test_settings_of_other_packages_that_fail_are_told_in_a_line(
    settings: type, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from softmask.methods.spg import SPG

    monkeypatch.setattr(SPG, "Settings", settings)
    with pytest.raises(SoftmaskError, match=said) as told:
        make_config("spg", "D-5", changes={"strength": 2.0})
    assert "\n" not in str(told.value)


def test_the_default_is_the_papers_training() -> None:
    assert make_config("spg", "D-5").training == PRESETS["paper"] == Training()


@pytest.mark.parametrize("method", ["spg", "ucl", "hat"])
def test_reading_many_configs_quickly_gives_what_reading_one_gives(method: str) -> None:
    for seed in (1, 2):
        config = make_config(method, "D-5", preset="short", seed=seed, tasks=2, changes={"seeds.order": 7})
        raw = json.loads(json.dumps(config.to_dict()))
        quick = read_config(raw)
        assert quick == RunConfig.from_dict(raw) == config
        assert quick.id() == config.id()
        assert quick.settings is not read_config(raw).settings, "no two runs share what could be changed"


@pytest.mark.parametrize(
    "spoil",
    [
        {"seeds": {"order": -1}},
        {"seeds": {"order": "1"}},
        {"seeds": {"odrer": 1}},
        {"seeds": None},
        {"tasks": 99},
        {"settings": {"x": 1}},
        {"odd": 1},
    ],
)
def test_reading_quickly_refuses_what_reading_refuses(spoil: dict[str, object]) -> None:
    raw = {**make_config("spg", "D-5").to_dict(), **spoil}
    read_config(make_config("spg", "D-5").to_dict())  # what is remembered must not help
    for read in (RunConfig.from_dict, read_config):
        with pytest.raises(SoftmaskError):
            read(raw)


def test_other_seeds_are_checked_and_nothing_else_changes() -> None:
    config = make_config("spg", "D-5", seed=1)
    config.id()  # asked before: the name of the one must not become the name of the other
    assert config.with_seeds(Seeds.all_from(5)) == make_config("spg", "D-5", seed=5)
    assert config.with_seeds(Seeds.all_from(5)).id() == make_config("spg", "D-5", seed=5).id() != config.id()
    with pytest.raises(ConfigError, match="0 or more"):
        config.with_seeds(Seeds(order=-1))
