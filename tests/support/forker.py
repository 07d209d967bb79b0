"""Forks commands of Python: `python forker.py`, a process that has paid for the imports.

Each line on stdin is a request. [words, folder, environment, stdout, stderr] forks a process, which goes on
as `python WORDS...` would, in a session of its own. The answer is its id. Its id as a request asks for its
wait status, which is null while it runs.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import sys
from importlib import import_module
from pathlib import Path


def asked() -> list[str]:
    """Answer requests. Returns in each forked process, with its words."""
    for line in sys.stdin:
        request = json.loads(line)
        if isinstance(request, int):
            pid, status = os.waitpid(request, os.WNOHANG)
            print(json.dumps(status if pid else None), flush=True)
            continue
        words, folder, environment, *outputs = request
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for number, path in enumerate(outputs, start=1):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
            return list(words)
        print(pid, flush=True)
    sys.exit()


def go_on(first: str, *rest: str) -> None:
    """What `python FIRST REST...` does."""
    if first == "-m":
        sys.argv = [*rest]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        sys.argv = [first, *rest]
        sys.path.insert(0, str(Path(first).parent))
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # as pytest has it
    # A shell that puts the tests in the background has its children ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("commands.main", "commands.run", "commands.party", "deployment.folder"):
        import_module(f"securefl.{name}")
    import_module("support.warmed")
    gc.freeze()
    words, code = asked(), 1
    try:
        go_on(*words)
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # to take apart all that was imported would cost more than most commands
