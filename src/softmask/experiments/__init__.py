"""The benchmark: task sequences, runs, analyses, reports and the paper's published results."""
