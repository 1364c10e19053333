"""All methods by name: those of `softmask.methods` and those of other packages."""

from __future__ import annotations

from softmask.learning.method import Method
from softmask.learning.registry import Registry

METHODS: Registry[type[Method]] = Registry("method", "softmask.methods")
register = METHODS.register
