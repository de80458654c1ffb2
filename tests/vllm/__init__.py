"""Tests of the overlay in the real engine (marker ``vllm``)."""
