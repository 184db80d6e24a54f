"""Fixtures of the harness's tests."""

from support.harness_runs import local_data

__all__ = ["local_data"]
