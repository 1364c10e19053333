"""Soft-masking in other people's trainers: a few lines each around `SoftMask`. Import the one you need.

accelerate and peft need nothing of their own: attach a mask to a prepared optimizer; make one for a model with
adapters, of which it watches what is trained.
"""
