# wheel.mk - the source distribution, and the wheel for one Python. Included by the Makefile.
# tools/make_wheel.sh builds and checks them in build/wheel/; only what passed is copied to dist/.

.PHONY: sdist wheel

sdist: ## build the source distribution into dist/
	@MAKE="$(MAKE)" PYTHON="$(PYTHON)" tools/make_wheel.sh sdist

# The wheel is tested with the torch of $(VENV).
wheel: | $(VENV)/.needs ## build the manylinux wheel for this Python into dist/, and test it without a compiler
	@MAKE="$(MAKE)" PYTHON="$(PYTHON)" TORCH_PYTHON="$(VPY)" tools/make_wheel.sh wheel
