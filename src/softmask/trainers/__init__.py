"""Soft-masking in other libraries' trainers: thin wrappers around `SoftMask`. Import the one you need. accelerate and
peft need no callback: attach a mask to a prepared optimizer, or create one for a model with adapters, whose trainable
parameters it masks.
"""
