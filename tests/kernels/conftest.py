from tests.core.conftest import _seeded

__all__ = ["_seeded"]
