"""Under `modscope run` a script does and prints what it does under Python alone, to the byte."""

import os
import re
import subprocess
import sys
import zipfile

import pytest
from run_helpers import BY_PATH, HOME, RUN, call, captures, plainly, run, write

NO_TORCH = "did not import torch"


def without_addresses(ran):
    return ran.status, *(re.sub(rb"0x[0-9a-f]+", b"", text) for text in (ran.out, ran.err))


def assert_same(folder, words, stdin=b"", flags=(), **env):
    """Whatever Python does; nothing else but our line, and no file."""
    plain = plainly(folder, *flags, *words, stdin=stdin, **env)
    ours = call([sys.executable, *flags, *RUN[1:], *words], folder, stdin, **env)
    assert without_addresses(ours) == without_addresses(plain)
    assert NO_TORCH in ours.said and ours.said.count("\n") == 1
    assert captures(folder) == []
    return plain


SCRIPTS = {
    "nothing": "",
    "who it is": """
        import os, sys
        print(__name__, __file__, __spec__, __package__, __builtins__, __doc__, type(__loader__), sys.modules["__main__"].__dict__ is globals())
        print(sys.argv, sys.path, sys.flags, sys.orig_argv[1:], sys.executable, sys.warnoptions, sys._xoptions)
        print(sorted(item for item in os.environ.items() if item[0] not in ("_", "LINES", "COLUMNS")))
        print("sitecustomize" in sys.modules, sys.excepthook is sys.__excepthook__)
        """,
    "its place on the stack": """
        import faulthandler, inspect, sys, traceback, warnings
        def inner():
            traceback.print_stack()
            faulthandler.dump_traceback()
            warnings.warn("far out", stacklevel=9)
            print(len(inspect.stack()), sys._getframe(1).f_back)
        inner()
        """,
    "how deep it may go": """
        def deeper(): deeper()
        deeper()
        """,
    "an exception": """
        def fail():
            try:
                1 / 0
            except ZeroDivisionError as error:
                raise ValueError("é", error) from error
        fail()
        """,
    "several exceptions": "raise ExceptionGroup('two', [ValueError(1), TypeError(2)])",
    "an exception with a note": """
        error = ValueError(1)
        error.add_note("look here")
        raise error
        """,
    "a hook for exceptions": """
        import sys
        sys.excepthook = lambda kind, error, trace: print("mine", kind, error, trace.tb_lineno, trace.tb_next)
        raise ValueError(1)
        """,
    "no Python": "this is no Python",
    "wrong indentation": "if 1:\nprint(2)",
    "exit": "import sys; sys.exit()",
    "exit 3": "import sys; sys.exit(3)",
    "exit with text": "import sys; sys.exit('so it ends')",
    "exit with an object": "import sys; sys.exit([1])",
    "exit beyond a byte": "import sys; sys.exit(259)",
    "exit from an exit": "import sys, atexit; atexit.register(sys.exit, 4); sys.exit(3)",
    "exit in a thread": """
        import sys, threading
        threading.Thread(target=sys.exit, args=(3,)).start()
        """,
    "an exception in a thread": """
        import threading
        threading.Thread(target=lambda: 1 / 0).start()
        """,
    "an interrupt": "raise KeyboardInterrupt",
    "leaving at once": """
        import os, sys
        sys.stdout.write("lost")
        os._exit(5)
        """,
    "the order at the end": """
        import atexit, threading, time
        atexit.register(print, "registered first")
        atexit.register(print, "registered last")
        def late():
            time.sleep(0.1)
            atexit.register(print, "registered by a thread")
            print("a thread ends")
        threading.Thread(target=late).start()
        print("the script ends")
        """,
    "an exception at the end": "import atexit; atexit.register(lambda: 1 / 0)",
    "its streams": """
        import os, sys
        sys.stdout.buffer.write(sys.stdin.buffer.read() + bytes(range(256)))
        sys.stderr.write("no end of line")
        print(sys.stdout.encoding, sys.stdout.line_buffering, sys.stdout.write_through, sys.stderr.errors, os.isatty(0))
        """,
    "another folder": "import os; os.chdir('/')",
    "numbers of files": """
        import os
        print(os.open(__file__, os.O_RDONLY), os.open(__file__, os.O_RDONLY))
        """,
    "signals": """
        import signal
        print([signal.getsignal(number) for number in sorted(signal.valid_signals())])
        """,
    "things kept in __main__": """
        import dataclasses, inspect, pickle
        @dataclasses.dataclass
        class Thing:
            number: int
        data = pickle.dumps(Thing(3))
        print(data, pickle.loads(data), inspect.getsource(Thing), inspect.getmodule(Thing).__name__)
        """,
    "other processes": """
        import multiprocessing, os, subprocess, sys
        class Thing:
            pass
        def double(x): return 2 * x, Thing.__module__, os.environ.get("PYTHONPATH")
        if __name__ == "__main__":
            for method in ("fork", "spawn"):
                with multiprocessing.get_context(method).Pool(1) as pool:
                    print(pool.map(double, [1, 2]))
            show = [sys.executable, "-c", "import os, sys; print(sys.path, os.environ, sys.argv, sys.flags)"]
            for program in (show, ["env"], ["sh", "-c", "env; python3 -c 'import os; print(os.environ)'"]):
                for env in (None, {}, {"PATH": os.environ["PATH"], "PYTHONPATH": "/x"}):
                    print(subprocess.run(program, env=env, stdout=-1).stdout)
            sys.stdout.flush()
            os.waitpid(os.posix_spawn(sys.executable, show, {**os.environ, b"A": b"1"}), 0)
            os.waitpid(os.posix_spawnp("env", ["env"], os.environ), 0)
        """,
    "a forked child that exits": """
        import os, sys
        if os.fork() == 0:
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
        """,
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_same(tmp_path, script):
    name = write(tmp_path, script)
    assert_same(tmp_path, [name, "-o", "out", "--steps", "--", "", "-m", "-h", "é"], b"\x00some\xff\n")


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGUSR1)", "os.abort()"])
def test_dying_of_a_signal(tmp_path, end):
    write(tmp_path, f"import os, signal; {end}")
    plain, ours = plainly(tmp_path, "script.py"), run(tmp_path, "script.py")
    assert ours == plain and ours.status < 0


def test_many_arguments(tmp_path):
    write(tmp_path, "import sys; print(len(sys.argv))")
    assert assert_same(tmp_path, ["script.py", *["x" * 1000] * 300]).out == b"301\n"


def test_exit_statuses_as_a_shell_sees_them(tmp_path):
    """Python dies of SIGINT itself after an interrupt: 130."""
    write(tmp_path, "raise KeyboardInterrupt")
    done = subprocess.run(
        ["sh", "-c", '"$@" 2>/dev/null; echo $?', "sh", *RUN, "script.py"], cwd=tmp_path, capture_output=True
    )
    assert done.stdout == b"130\n"


@pytest.mark.parametrize("words", [["pkg.inner", "--", "-q", "-h"], ["pkg"], ["gone"], ["pkg.gone"]])
def test_modules(tmp_path, words):
    (tmp_path / "pkg").mkdir()
    write(tmp_path, "print('the package')", "pkg/__init__.py")
    for name in ("inner", "__main__"):
        write(
            tmp_path,
            "import sys; print(__name__, __file__, __spec__, __package__, sys.argv, sys.path[0])",
            f"pkg/{name}.py",
        )
    assert_same(tmp_path, ["-m", *words])


def test_a_folder_and_an_archive(tmp_path):
    (tmp_path / "app").mkdir()
    write(tmp_path, "import sys; print(__name__, __file__, sys.argv, sys.path[0])", "app/__main__.py")
    assert assert_same(tmp_path, ["app", "x"]).status == 0
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.write(tmp_path / "app" / "__main__.py", "__main__.py")
    assert assert_same(tmp_path, ["app.zip", "x"]).status == 0


def test_a_script_from_standard_input(tmp_path):
    assert assert_same(tmp_path, ["-", "x"], b"import sys; print(sys.argv)").out == b"['-', 'x']\n"


def test_what_python_is_told(tmp_path):
    """Flags before `-m modscope` are meant for the script."""
    write(
        tmp_path,
        "import sys; print(sys.flags, sys.warnoptions, sys._xoptions, sys.stdout.write_through); open('/dev/null')",
    )
    assert_same(tmp_path, ["script.py"], flags=["-u", "-X", "dev", "-W", "error::UserWarning", "-O", "-B", "-s"])


@pytest.mark.parametrize("path", [None, "", "extra", ":extra::"])
def test_the_path_is_as_without_us(tmp_path, path):
    (tmp_path / "extra").mkdir()
    write(tmp_path, "import os, sys; print([p for p in sys.path], os.environ.get('PYTHONPATH'))")
    if BY_PATH:
        path = f"{path or ''}:{HOME}"
    assert_same(tmp_path, ["script.py"], PYTHONPATH=path)


@pytest.mark.parametrize("custom", ["sys.customized = __file__", "import gone", "1 / 0"])
def test_the_installations_own_sitecustomize(tmp_path, custom):
    (tmp_path / "site").mkdir()
    write(tmp_path, f"import sys\nif 'modscope' not in sys.orig_argv:\n    {custom}", "site/sitecustomize.py")
    write(tmp_path, "import sys; print(getattr(sys, 'customized', None), sys.modules.get('sitecustomize'))")
    path = os.pathsep.join([str(tmp_path / "site"), HOME])
    assert_same(tmp_path, ["script.py"], PYTHONPATH=path)


@pytest.mark.skipif(BY_PATH, reason="modscope itself is found by the environment")
def test_python_that_reads_no_environment(tmp_path):
    write(tmp_path, "print(1)")
    done = call([sys.executable, "-I", "-m", "modscope", "run", "script.py"], tmp_path)
    assert done.status == 2 and done.out == b"" and b"-I" in done.err and captures(tmp_path) == []


# ---- importing torch ----


def test_a_torch_that_cannot_be_imported(tmp_path):
    """Neither the traceback nor a second try shows anything of ours."""
    write(tmp_path, "import warnings; warnings.warn('at import', stacklevel=2); import gone", "torch.py")
    write(
        tmp_path,
        """
        import sys
        for _ in range(2):
            try:
                import torch
            except ImportError as error:
                print(error.name, "torch" in sys.modules)
        import torch
        """,
    )
    assert_same(tmp_path, ["script.py"])


def test_looking_for_torch_without_importing_it(tmp_path):
    write(
        tmp_path, "import importlib.util as u; s = u.find_spec('torch'); print(s.name, s.origin, s.loader is not None)"
    )
    assert_same(tmp_path, ["script.py"])


@pytest.mark.parametrize("version", ["1.13.1", "2.4.1+cu121"])
def test_a_torch_that_is_too_old(tmp_path, version):
    """A sentence, and the script runs on."""
    write(tmp_path, f"import weakref\n__version__ = '{version}'\n", "torch.py")
    write(tmp_path, "import sys, torch; print(torch.__version__, torch.__spec__, sys.meta_path); sys.exit(3)")
    done = run(tmp_path, "script.py")
    assert without_addresses(done) == without_addresses(plainly(tmp_path, "script.py"))
    assert "runs without a capture" in done.said and "torch 2.5 or newer" in done.said and version in done.said
    assert captures(tmp_path) == []


def test_a_torch_that_comes_by_another_way(tmp_path):
    write(tmp_path, "", "torch.py")
    write(tmp_path, "import sys; del sys.meta_path[0]; import torch")
    done = run(tmp_path, "script.py")
    assert done.status == 0 and "did not notice" in done.said and captures(tmp_path) == []


def test_a_forked_child_says_nothing(tmp_path):
    write(tmp_path, "__version__ = '1.13.1'", "torch.py")
    write(tmp_path, "import os; pid = os.fork(); import torch; pid and os.wait()")
    done = run(tmp_path, "script.py")
    assert done.status == 0 and done.err == b"" and done.said.count("\n") == 1 and captures(tmp_path) == []


@pytest.mark.slow
def test_torch_as_the_script_sees_it(tmp_path):
    write(
        tmp_path,
        """
        import sys
        import torch
        print(torch.__spec__, type(torch.__spec__), torch.__loader__.name, torch.__spec__.loader is torch.__loader__)
        print(vars(torch.__spec__).keys(), [type(finder).__name__ for finder in sys.meta_path], torch.__spec__._initializing)
        """,
    )
    plain, ours = plainly(tmp_path, "script.py"), run(tmp_path, "script.py")
    assert without_addresses(ours) == without_addresses(plain) and "allocated no PyTorch memory" in ours.said
