"""From tables to what people read."""
