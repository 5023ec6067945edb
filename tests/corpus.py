"""One list of programs that log, with what they log; every law is tested on all of them.

The programs are in ``tests/core/programs``, by what they are about. Each is a function of one float32 vector that
returns a scalar, so that all of them can be jitted, vmapped and, unless they say otherwise, differentiated.
"""

from tests.core.programs import branches, derivatives, lanes, loops, rows, straight
from tests.core.programs._program import LANES as LANES
from tests.core.programs._program import Program as Program
from tests.core.programs._program import X as X

PROGRAMS: list[Program] = [
    *straight.corpus.programs,
    *loops.corpus.programs,
    *branches.corpus.programs,
    *derivatives.corpus.programs,
    *lanes.corpus.programs,
    *rows.corpus.programs,
]

assert len({program.name for program in PROGRAMS}) == len(PROGRAMS)
