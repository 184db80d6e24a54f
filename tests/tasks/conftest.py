"""Fixtures of the harness's tests."""

from harness_runs import local_data

__all__ = ["local_data"]
