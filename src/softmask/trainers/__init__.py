"""Soft-masking in other libraries' trainers: a few lines each around `SoftMask`. Import the one you need.

accelerate and peft need no callback: attach a mask to a prepared optimizer, or make one for a model with adapters, of
which it watches the trainable parameters.
"""
