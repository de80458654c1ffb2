"""The adaptive draft-depth controller as an overlay on a released vLLM."""
