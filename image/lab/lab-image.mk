# The lab's Python environment, image and checkpoint; each a no-op when its content is cached.
PYTHON ?= .venv/bin/python

.PHONY: vllm-env vllm-lock lab-image

vllm-env: ## build the pinned CPU vLLM environment and print its path
	@$(PYTHON) -m image.lab.environment

vllm-lock: ## resolve requirements.in again and rewrite the hash lock
	$(PYTHON) -m image.lab.lock

lab-image: ## build the lab's release (archive parts, checksums, weights) and print its path
	@$(PYTHON) -m image.lab.build
