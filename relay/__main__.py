"""The `relay` program, and `python -m relay`: a process that serves is prepared before it loads."""

import sys

from relay.server import stop_signals

_SERVING = {"serve": ("stderr",), "demo": ("stderr", "stdout"), "sandbox": ("stderr", "stdout")}
"""Commands that serve, and the streams whose readers may not block them.

The `stdout` sink of `serve` writes to its stdout on a thread, and drops nothing.
"""


def main() -> None:
    """Run the command that the process was started with."""
    if streams := _SERVING.get("".join(sys.argv[1:2]), ()):
        stop_signals.take()
        # Only now, because until then a signal is lost.
        from relay.telemetry.line_buffer import buffered  # noqa: PLC0415

        for name in streams:
            # None for a closed one.
            if (stream := getattr(sys, name)) is not None:
                setattr(sys, name, buffered(stream))
    from relay.cli import main as run  # noqa: PLC0415

    run()


if __name__ == "__main__":
    main()
