"""The paper (Konishi et al., ICML 2023): published numbers, claims, the runs behind each table, and verdicts."""
