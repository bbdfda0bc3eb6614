"""pytest's plugin: tests of memory. pytest loads it in every run, so it imports nothing until a test uses it.

``gpu_memory`` runs a test on a virtual GPU; ``limit_memory`` and ``limit_leaks`` count what torch really allocates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from modscope.integrations.memory_tests import MeasuredTest

_MARKERS = {
    "gpu_memory": "(gpu, max=None): run the test on a virtual GPU. It fails if the GPU has too little memory, or if it "
    "reserves more than max, such as '18 GiB'",
    "limit_memory": "(limit): the test fails if torch holds more than the limit, such as '200 MB', while it runs",
    "limit_leaks": "(limit, filter_fn=None): the test fails if tensors are left of more than the limit that one line "
    "allocated",
}
_OF_MEMRAY = {"limit_memory", "limit_leaks"}  # pytest-memray has these too: where it is installed, they are its own

_test: pytest.StashKey[MeasuredTest] = pytest.StashKey()
_names: pytest.StashKey[list[str]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("modscope", "memory of tests on virtual GPUs")
    compare = "fail the tests on virtual GPUs that need more memory than FILE says"
    group.addoption("--modscope-baseline", metavar="FILE", help=compare)
    update = "write what the tests on virtual GPUs need into the file of --modscope-baseline"
    group.addoption("--modscope-update", action="store_true", help=update)


def pytest_configure(config: pytest.Config) -> None:
    taken = _OF_MEMRAY if config.pluginmanager.hasplugin("memray") else ()
    config.stash[_names] = [name for name in _MARKERS if name not in taken]
    for name in config.stash[_names]:
        config.addinivalue_line("markers", name + _MARKERS[name])
    path, update = config.getoption("--modscope-baseline"), config.getoption("--modscope-update")
    if path:
        from modscope.integrations.memory_baseline import Baseline

        config.pluginmanager.register(Baseline(path, update, config), Baseline.NAME)
    elif update:
        raise pytest.UsageError("--modscope-update needs the file to write: add --modscope-baseline FILE")


# ---- a test: its fixtures, its body, the ends of its fixtures ----


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the fixtures, which may put a model on the GPU."""
    markers = [marker for name in item.config.stash[_names] if (marker := item.get_closest_marker(name)) is not None]
    if not markers:
        return
    from modscope.integrations import memory_tests

    why = ""
    try:
        test = memory_tests.MeasuredTest(memory_tests.read_markers(markers), str(item.config.rootpath))
        test.before_fixtures()
        item.stash[_test] = test
    except memory_tests.CannotMeasure as error:
        why = str(error)
    if why:
        pytest.fail(why, pytrace=False)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    test = item.stash.get(_test, None)
    if test is None:
        yield
        return
    test.begin()
    outcome: Any = yield
    # pytest keeps the failure of a unittest.TestCase until it makes the report
    failed = outcome.excinfo is not None or bool(getattr(item, "_excinfo", None))
    error = outcome.excinfo[1] if outcome.excinfo else None
    if error is not None and not item.config.getoption("fulltrace"):
        test.end_traceback_outside(error)
    why = test.end(error)
    if why is None and test.figures is not None and not failed:
        baseline = item.config.pluginmanager.getplugin("modscope-baseline")
        why = baseline.compare(item.nodeid, test.figures) if baseline else None
    if test.section:
        item.add_report_section("call", "modscope", test.section)
    if why and not failed:
        try:
            pytest.fail(why, pytrace=False)
        except pytest.fail.Exception as failure:
            outcome.force_exception(failure)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """The figures go with the report: with xdist, another process writes the baseline."""
    outcome: Any = yield
    test = item.stash.get(_test, None)
    if call.when == "call" and test is not None and test.figures is not None:
        outcome.get_result().modscope = test.figures._asdict()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """After the fixtures, also where one of them raises at its end."""
    yield
    test = item.stash.get(_test, None)
    if test is not None:
        test.leave()
        del item.stash[_test]


@pytest.fixture
def gpu_memory() -> Any:
    """Run parts of a test on virtual GPUs: ``with gpu_memory("rtx4090") as gpu: ...``, then read ``gpu.peak_reserved``,
    ``gpu.fits`` and the other figures of ``modscope.virtual_gpu``."""
    import modscope

    return modscope.virtual_gpu
