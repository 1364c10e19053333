"""The comparative claims of the paper's sections 4.2 and 4.3 and of its appendices, each with a name and a check."""

from __future__ import annotations

from dataclasses import dataclass

from softmask.experiments.analyses.capacity import WHOLE
from softmask.experiments.paper.checks import (
    ALL,
    CHI_ADDS,
    CONTINUAL,
    DISSIMILAR,
    GROWS,
    PRUNING,
    SIMILAR,
    Check,
    above,
    best_in_most,
    better_features,
    blocked,
    both,
    close,
    hat_features_fall,
    near_chance,
    on_average,
    positive,
    smaller_gaps,
    within,
)

BASELINES = tuple(title for title in CONTINUAL if title != "SPG")
NEVER_FORGET = ("PGN", "PathNet", "HAT", "CAT", "SupSup")
ISOLATION = ("PGN", "PathNet", "HAT", "CAT", "WSN")
PENALTIES = ("EWC", "SI", "UCL")
SPG = ("SPG",)
# The paper's words in percentage points.
NOTHING, LITTLE, MUCH, SLIGHT = 0.05, 2.0, 5.0, 6.0
INFINITE = float("inf")


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, in our words, and its check."""

    name: str
    section: str
    sentence: str
    check: Check


def _without(sequences: tuple[str, ...], *left_out: str) -> tuple[str, ...]:
    return tuple(sequence for sequence in sequences if sequence not in left_out)


def _claim(name: str, section: str, sentence: str, *parts: Check) -> Claim:
    return Claim(name, section, sentence, both(*parts))


CLAIMS = (
    # Dissimilar tasks
    _claim("mtl-best", "4.2", "MTL is best on all dissimilar sequences", above("ACC", ("MTL",), CONTINUAL, DISSIMILAR)),
    _claim("ncl-forgets", "4.2", "NCL forgets dissimilar tasks", within("BWT", ("NCL",), DISSIMILAR, -INFINITE, -1.0)),
    _claim(
        "isolation-forgets-nothing",
        "4.2",
        "PGN, PathNet, HAT, CAT and SupSup forget nothing",
        within("BWT", NEVER_FORGET, DISSIMILAR, -NOTHING, NOTHING),
    ),
    _claim(
        "spg-over-isolation",
        "4.2",
        "SPG outperforms PGN, PathNet, HAT, CAT and SupSup on average over dissimilar sequences",
        on_average("ACC", SPG, NEVER_FORGET, DISSIMILAR),
    ),
    _claim(
        "pathnet-on-c10-only",
        "4.2",
        "PathNet outperforms SPG on C-10 but nowhere else among dissimilar sequences",
        above("ACC", ("PathNet",), SPG, ("C-10",)),
        above("ACC", SPG, ("PathNet",), _without(DISSIMILAR, "C-10")),
    ),
    _claim(
        "spg-forgets-little",
        "4.2",
        "SPG forgets dissimilar tasks slightly",
        within("BWT", SPG, DISSIMILAR, -SLIGHT, 0.0),
    ),
    _claim(
        "spg-forward-positive",
        "4.2",
        "SPG's forward transfer is positive on dissimilar sequences",
        positive("FWT", SPG, DISSIMILAR),
    ),
    _claim(
        "spg-forward-outweighs",
        "4.2",
        "Its forward transfer outweighs its forgetting: SPG is above ONE",
        above("ACC", SPG, ("ONE",), DISSIMILAR),
    ),
    _claim("spg-best-in-most", "4.2", "SPG is best in most cases of dissimilar tasks", best_in_most),
    _claim(
        "penalties-forget",
        "4.2",
        "EWC, SI and UCL forget dissimilar tasks more than they transfer, and end below SPG",
        within("BWT", PENALTIES, DISSIMILAR, -INFINITE, -1.0),
        above("ACC", SPG, PENALTIES, DISSIMILAR),
    ),
    _claim(
        "tag-limited",
        "4.2",
        "TAG hardly forgets, but transfers less than SPG and ends below it",
        within("BWT", ("TAG",), DISSIMILAR, -LITTLE, INFINITE),
        above("FWT", SPG, ("TAG",), DISSIMILAR),
        above("ACC", SPG, ("TAG",), DISSIMILAR),
    ),
    _claim(
        "wsn-on-cifar",
        "4.2",
        "WSN is slightly better than SPG on C-10 and C-20; SPG is best on the other dissimilar sequences",
        above("ACC", ("WSN",), SPG, ("C-10", "C-20")),
        above("ACC", SPG, BASELINES, _without(DISSIMILAR, "C-10", "C-20")),
    ),
    _claim(
        "i100-over-wsn", "4.2", "On I-100 SPG outperforms WSN by far", above("ACC", SPG, ("WSN",), ("I-100",), MUCH)
    ),
    _claim(
        "gradient-over-fisher-penalty",
        "4.2",
        "EWC-GI outperforms EWC but on C-20, where EWC is less than a point better",
        above("ACC", ("EWC-GI",), ("EWC",), _without(DISSIMILAR, "C-20")),
        close("ACC", (("EWC-GI", "EWC"),), ("C-20",), 1.0),
    ),
    _claim(
        "gradient-over-fisher-mask",
        "4.2",
        "SPG outperforms SPG-FI on all dissimilar sequences",
        above("ACC", SPG, ("SPG-FI",), DISSIMILAR),
    ),
    _claim(
        "mask-over-penalty-gradient",
        "4.2",
        "SPG outperforms EWC-GI on dissimilar sequences",
        above("ACC", SPG, ("EWC-GI",), DISSIMILAR),
    ),
    _claim(
        "mask-over-penalty-fisher",
        "4.2",
        "SPG-FI outperforms EWC on dissimilar sequences but C-10",
        above("ACC", ("SPG-FI",), ("EWC",), _without(DISSIMILAR, "C-10")),
    ),
    # Similar tasks
    _claim("spg-best-similar", "4.2", "SPG is best on all similar sequences", above("ACC", SPG, BASELINES, SIMILAR)),
    _claim(
        "spg-transfers-both-ways",
        "4.2",
        "On similar sequences SPG transfers forward and backward",
        positive("FWT", SPG, SIMILAR),
        positive("BWT", SPG, SIMILAR),
    ),
    _claim(
        "similar-is-easy",
        "4.2",
        "NCL, A-GEM, UCL and SI hardly forget similar tasks",
        within("BWT", ("NCL", "A-GEM", "UCL", "SI"), SIMILAR, -LITTLE, INFINITE),
    ),
    _claim(
        "tag-below-similar",
        "4.2",
        "TAG is below NCL, A-GEM, UCL and SI on similar sequences",
        above("ACC", ("NCL", "A-GEM", "UCL", "SI"), ("TAG",), SIMILAR),
    ),
    _claim(
        "isolation-below-similar",
        "4.2",
        "PGN, PathNet, HAT and WSN are below SPG on similar sequences and have no backward transfer",
        above("ACC", SPG, ("PGN", "PathNet", "HAT", "WSN"), SIMILAR),
        within("BWT", ("PGN", "PathNet", "HAT", "WSN"), SIMILAR, -NOTHING, NOTHING),
    ),
    _claim(
        "supsup-far-below",
        "4.2",
        "SupSup is far below SPG on similar sequences",
        above("ACC", SPG, ("SupSup",), SIMILAR, MUCH),
    ),
    _claim(
        "cat-slightly-better",
        "4.2",
        "CAT is better than SupSup, PGN, PathNet and HAT on average over similar sequences",
        on_average("ACC", ("CAT",), ("SupSup", "PGN", "PathNet", "HAT"), SIMILAR),
    ),
    _claim(
        "importance-matters-less",
        "4.2",
        "On similar sequences SPG-FI is close to SPG, and EWC-GI to EWC",
        close("ACC", (("SPG-FI", "SPG"), ("EWC-GI", "EWC")), SIMILAR, LITTLE),
    ),
    _claim(
        "mask-over-penalty-similar",
        "4.2",
        "EWC-GI and EWC are below SPG and SPG-FI on similar sequences",
        above("ACC", ("SPG", "SPG-FI"), ("EWC-GI", "EWC"), SIMILAR),
    ),
    _claim(
        "spg-best-on-average",
        "4.2",
        "SPG is best on average, over dissimilar and over similar sequences",
        on_average("ACC", SPG, BASELINES, DISSIMILAR),
        on_average("ACC", SPG, BASELINES, SIMILAR),
    ),
    # Capacity
    _claim(
        "spg-blocks-less",
        "4.2.1",
        "SPG blocks fewer parameters than HAT",
        blocked(("HAT", WHOLE), ("SPG", WHOLE)),
    ),
    _claim("blocking-grows", "4.2.1", "The share of blocked parameters grows from task to task", GROWS),
    _claim(
        "supsup-transfers-less",
        "4.2.1",
        "The forward transfer of SupSup is below that of SPG",
        above("FWT", SPG, ("SupSup",), ALL),
    ),
    _claim(
        "isolation-loses-transfer",
        "4.2.1, A",
        "Forward transfer of PGN, PathNet, HAT, CAT and WSN falls over dissimilar tasks",
        positive("slope", ISOLATION, DISSIMILAR, sign=-1),
    ),
    _claim(
        "spg-gains-transfer",
        "4.2.1, A",
        "Forward transfer of SPG rises over dissimilar tasks",
        positive("slope", SPG, DISSIMILAR),
    ),
    _claim("spg-best-forward", "A", "SPG has the best forward transfer", above("FWT", SPG, BASELINES, ALL)),
    # Importance and representation
    _claim(
        "pruning-order", "4.2.2", "The higher the importance of the pruned parameters, the lower the accuracy", PRUNING
    ),
    _claim("pruned-to-chance", "4.2.2", "Without the most important 20 % the accuracy is near chance", near_chance),
    _claim(
        "spg-features",
        "4.2.3, D",
        "SPG's features suit another dataset better than others'",
        better_features,
    ),
    _claim("hat-features", "4.2.3", "HAT's features get worse as tasks are learned", hat_features_fall),
    # Ablations
    _claim(
        "chi-helps",
        "4.3",
        "Cross-head importance helps on dissimilar sequences",
        above("ACC", SPG, ("SPG (w/o CHI)",), DISSIMILAR),
    ),
    _claim(
        "chi-harmless",
        "4.3",
        "Cross-head importance changes little on similar sequences",
        close("ACC", (("SPG", "SPG (w/o CHI)"),), SIMILAR, LITTLE),
    ),
    _claim("smh-helps", "4.3", "Soft-masking of heads helps", above("ACC", SPG, ("SPG (w/o SMH)",), ALL)),
    _claim(
        "soft-over-hard",
        "4.3",
        "Soft masks are better than hard ones",
        above("ACC", SPG, ("SPG (w/ hard-masking)",), DISSIMILAR),
        on_average("ACC", SPG, ("SPG (w/ hard-masking)",), SIMILAR),
    ),
    # Appendices
    _claim("hat-blocks-early", "B", "HAT blocks more in earlier layers", blocked(("HAT", "conv1"), ("HAT", "fc2"))),
    _claim("spg-blocks-late", "B", "SPG blocks more in later layers", blocked(("SPG", "fc2"), ("SPG", "conv1"))),
    _claim("chi-adds", "C", "Cross-head importance raises the accumulated importance at every task", CHI_ADDS),
    _claim("chi-gaps", "C", "Cross-head importance raises it by less on similar sequences", smaller_gaps),
    _claim(
        "larger-networks",
        "E",
        "CAT and SupSup need more parameters than the others",
        above("size", ("CAT", "SupSup"), _without(CONTINUAL, "CAT", "SupSup"), ALL),
    ),
)
