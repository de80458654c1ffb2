"""The lab's image: a real Ray and a real vLLM for CPU, built on this machine without a registry."""
