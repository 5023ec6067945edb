"""A pseudo-terminal, and what somebody would see who looks at it."""

import contextlib
import fcntl
import os
import pty
import re
import struct
import termios
import threading

# What a live display sends beside text: end of line, start of line, "2K" clear the line, "nA" go up. Colours, and the
# cursor that comes and goes, leave the text as it is.
_TOKENS = re.compile(r"\r?\n|\r|\x1b\[\??([0-9;]*)([A-Za-z])|[^\r\n\x1b]+")


class Terminal:
    """`file` is a terminal of so many columns, until somebody looks at it."""

    def __init__(self, columns):
        self._main, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.file = open(other, "w")  # noqa: SIM115 (closed by `text`)
        self.parts = []
        self._reader = threading.Thread(target=self._read)  # a terminal that nobody reads from fills up
        self._reader.start()

    def _read(self):
        with contextlib.suppress(OSError):  # which is how a terminal that nobody writes to any more ends
            while part := os.read(self._main, 10_000):
                self.parts.append(part)

    def text(self):
        """All that was sent to it."""
        if not self.file.closed:
            self.file.close()
            self._reader.join()
            os.close(self._main)
        return b"".join(self.parts).decode()

    def lines(self):
        """What stands on it in the end."""
        screen, row, column = [""], 0, 0
        for token in _TOKENS.finditer(self.text()):
            text, (number, command) = token[0], token.groups()
            if text.endswith("\n"):
                row, column = row + 1, 0
                screen += [""] * (row + 1 - len(screen))
            elif text == "\r":
                column = 0
            elif command == "A":
                row -= int(number or 1)
            elif command == "K":
                screen[row] = ""
            elif command is None:
                line = screen[row].ljust(column)
                screen[row] = line[:column] + text + line[column + len(text) :]
                column += len(text)
        return [line.rstrip() for line in screen]
