"""Examples to copy from; tests run them."""
