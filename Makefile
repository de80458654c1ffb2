# The commands of this repository; `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash

VENV := .venv
PYTHON := $(VENV)/bin/python
BIN := $(VENV)/bin
# Molecule and Ansible start their companions by name.
export PATH := $(CURDIR)/$(BIN):$(PATH)
# The lab needs nothing but the standard library and runs before there is an environment, too.
LAB := PYTHONPATH=molecule python3 -m spark_lab
export LAB_INVENTORY := $(if $(filter-out spark-lab,$(LAB_NAME)),.lab/$(LAB_NAME)/inventory,inventories/lab)

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# --- environment ---------------------------------------------------------------------------------

.PHONY: venv host-packages
venv: $(VENV)/.complete ## Python environment of the control node

$(VENV)/.complete: pyproject.toml
	@echo "make: Python environment in $(VENV) (about 2 min the first time)"
	@python3 -m venv $(VENV)
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

host-packages: ## Debian packages that the lab and the tests need
	@molecule/host-packages.sh

# --- lab image (vllm-env, vllm-lock, lab-image) --------------------------------------------------

include image/lab/lab-image.mk

# --- lab -----------------------------------------------------------------------------------------

.PHONY: lab lab-check lab-up lab-down lab-shell
lab: lab-check host-packages ## four nodes on this machine, brought to a served model
	@$(MAKE) --no-print-directory venv
	@$(MAKE) --no-print-directory lab-image
	@$(MAKE) --no-print-directory lab-up
	ansible-playbook -i $(LAB_INVENTORY) site.yml

lab-check:
	@$(LAB) check

lab-up: lab-check host-packages ## the nodes alone, as delivered; what runs is left as it is
	@$(LAB) up

lab-down: ## remove the lab and what was started for it
	@$(LAB) down
	@if [ -x $(BIN)/molecule ]; then $(BIN)/molecule reset -s default >/dev/null 2>&1; fi

NODE ?= alpha
lab-shell: ## a root shell in NODE (alpha)
	@$(LAB) shell $(NODE)

# --- checks (lint, test) -------------------------------------------------------------------------

.PHONY: lint test
lint: venv ## ruff, mypy, yamllint, ansible-lint, documentation of the collection
	ruff check .
	ruff format --check .
	mypy $$(git ls-files '*.py')
	yamllint --strict .
	ansible-lint
	ansible-config validate -t all
	antsibull-docs lint-collection-docs --plugin-docs collections/ansible_collections/spark/appliance

test: lint ## lint, then unit, playbook and system tests on the running lab
	pytest
