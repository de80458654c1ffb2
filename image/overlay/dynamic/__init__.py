"""Files that the overlay adds to ``vllm/v1/spec_decode/dynamic``; none of them imports vLLM."""
