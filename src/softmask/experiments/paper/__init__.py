"""The paper's tables and figures: which runs are behind each, and whether ours agree."""

from softmask.experiments.paper.recipes import NAMES, Recipe, recipe, recipes

__all__ = ["NAMES", "Recipe", "recipe", "recipes"]
