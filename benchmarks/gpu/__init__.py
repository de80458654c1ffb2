"""Measurements on a CUDA device; nothing here runs in the tests."""
