"""Speed as ratios within one run: our code against plain PyTorch loops written here, side by side."""
