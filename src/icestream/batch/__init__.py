"""Batch: one micro-batch between plan and commit: what tasks are told, do and report."""
