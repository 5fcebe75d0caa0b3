"""Accuracy: what a format costs in error and in task scores."""
