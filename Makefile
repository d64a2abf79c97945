# Everything from a fresh clone: `make demo` shows it, `make test` proves it. Needs Linux, Python 3.10 - 3.13 and the package index.
#   PYTHON=python3.12   another interpreter      COMFYUI_PATH=~/ComfyUI   your own ComfyUI (it is not written to)
#   VIDEO=clip.mp4 AUDIO=speech.wav              what `make demo` works on

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/installed
LISTED := .cache/comfyui-requirements.txt
FACE_MODELS := .cache/face
export LATENTSYNC_FACE_MODELS ?= $(CURDIR)/$(FACE_MODELS)
# uv: trust the certificates that the machine trusts (the first name is the current one), and put files in the venv by hard link
export UV_SYSTEM_CERTS ?= 1
export UV_NATIVE_TLS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1
export PIP_PROGRESS_BAR ?= off

.PHONY: help venv demo serve test test-gpu test-full-engine bench bench-memory workflows thumbnails screenshots browser help-pages lint clean FORCE
.DEFAULT_GOAL := help

help:
	@echo "make demo    lip-sync a small clip in a real ComfyUI on the CPU (VIDEO= AUDIO= for your own)"
	@echo "make test    lint and every test"
	@echo "make lint    ruff, and mypy on the pack"
	@echo "make bench   every stage on this machine, as a table (COMPARE='a.json b.json' for two earlier ones); bench-memory: memory against length"
	@echo "make test-gpu, make test-full-engine    what needs a CUDA device; the full-size TensorRT-RTX build (minutes, 7 GB)"
	@echo "make workflows, thumbnails  the examples in the editor's form, from their API form; their pictures"
	@echo "make screenshots  pictures of our nodes in a real browser, for the help pages (web/docs)"
	@echo "make help-pages the nodes' help pages and English words, from their schemas"
	@echo "make serve   ComfyUI with this pack, to look at in a browser"
	@echo "make venv    only install what the others need, into $(VENV)"
	@echo "make clean   remove $(VENV), .cache and build"

venv: $(INSTALLED)

$(RUN):
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 10) <= v <= (3, 13) else "Python %d.%d: 3.10 - 3.13 is needed. Try make PYTHON=python3.12 ..." % v)'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "no venv: install your system's venv package (Debian: apt install python3-venv), or try make PYTHON=..."; exit 1; }

# what the ComfyUI in use asks for: asked every time, since COMFYUI_PATH may name another one, but only a change is written
$(LISTED): FORCE | $(RUN)
	@mkdir -p .cache && $(RUN) tools/comfyui.py requirements > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi
FORCE:

# uv installs the list in half a minute; pip, which also knows mirrors configured for it, is the fallback
$(INSTALLED): requirements-dev.txt $(LISTED)
	@echo "Installing into $(VENV) (once: about 8 GB on x86-64, where torch comes with CUDA)"
	@$(RUN) -m pip install -qq uv || true
	@$(RUN) -m uv pip install -q --python $(RUN) -r requirements-dev.txt -r $(LISTED) \
		|| $(RUN) -m pip install -q -r requirements-dev.txt -r $(LISTED)
	@touch $@

$(FACE_MODELS): tools/face_models.py | $(RUN)
	@$(RUN) tools/face_models.py $(FACE_MODELS)
	@touch $@

demo: $(INSTALLED) $(FACE_MODELS)
	@$(RUN) tools/demo.py $(if $(VIDEO),--video "$(VIDEO)") $(if $(AUDIO),--audio "$(AUDIO)")

serve: $(INSTALLED) $(FACE_MODELS)
	@$(RUN) tools/comfyui.py serve

lint: $(INSTALLED)
	@$(RUN) -m ruff check .
	@$(RUN) tools/check_types.py

# the tests of the page need a Chromium; without one they are skipped, and nothing else changes
browser: $(INSTALLED)
	@$(RUN) tools/chromium.py

test: lint browser $(FACE_MODELS)
	@$(RUN) -m pytest -m "not slow and not gpu" --timeout 600 --durations 12

bench-memory: $(INSTALLED)
	@$(RUN) bench/memory.py $(BENCH)

test-gpu: $(INSTALLED) $(FACE_MODELS)
	@$(RUN) -m pytest -m gpu

test-full-engine: $(INSTALLED)
	@$(RUN) tests/engine_builder/full_engine.py

bench: $(INSTALLED) $(FACE_MODELS)
	@$(RUN) . bench $(if $(COMPARE),--compare $(COMPARE))

workflows: $(INSTALLED)
	@$(RUN) tools/workflow.py

thumbnails: $(INSTALLED)
	@$(RUN) tools/thumbnails.py

screenshots: browser $(FACE_MODELS)
	@$(RUN) tools/screenshots.py

help-pages: $(INSTALLED)
	@$(RUN) tools/help_pages.py

clean:
	rm -rf $(VENV) .cache build
