from tests.experiments.sequences.conftest import cache_of_the_test

__all__ = ["cache_of_the_test"]
