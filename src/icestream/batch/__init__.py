"""Batch: one micro-batch between plan and commit: what tasks get, do and report."""
