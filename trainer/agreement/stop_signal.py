"""How a rank is told to stop while it trains: by SIGUSR1 of its launcher, which sets a flag and nothing else.

Before and after its training a rank leaves at once: that is the default of the signal. SIGTERM keeps its default all
the time: torch's agent ends with it the siblings of a rank that has failed.

torch's agent signals a rank's whole session. So the signal is blocked, which children inherit and survive by, and a
thread waits for it; also while the main thread waits in a collective.
"""

from __future__ import annotations

import signal
import threading

from trainer.agreement.agreement import Agreement

STOP = signal.SIGUSR1


def listen(agreement: Agreement) -> None:
    """From here on a stop is agreed upon with the other ranks. In the main thread."""

    def wait() -> None:
        while True:
            signal.sigwait({STOP})
            agreement.want_stop()

    signal.signal(STOP, lambda number, frame: agreement.want_stop())  # by a thread that was there before
    signal.pthread_sigmask(signal.SIG_BLOCK, {STOP})
    threading.Thread(target=wait, name="stop", daemon=True).start()
