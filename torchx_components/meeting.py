"""How anchor and nodes of a run find each other: a folder that all of them see, with two files.

    secret       the job secret, mode 0600
    place.json   {"store": "host:port", "data": path}; appears when the anchor is ready

No node claims to be there: which members live, the anchor asks the scheduler, and what the job wants is signed.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from chicle_elastic.errors import DataError, PeerLostError
from torchx_components.job_state import replace_json

SECRET_NAME = "secret"
PLACE_NAME = "place.json"
POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetingPlace:
    """Where the run takes place."""

    store: str
    data: str

    def write(self, run: Path) -> None:
        """Publish it, whole."""
        replace_json(run / PLACE_NAME, asdict(self))

    @classmethod
    def wait_for(cls, run: Path, timeout_s: float) -> "MeetingPlace":
        """Read it, as soon as it is there. Raises PeerLostError when it was not in time, DataError when the file is
        damaged."""
        path = run / PLACE_NAME
        end_s = time.monotonic() + timeout_s
        while not path.exists():
            if time.monotonic() > end_s:
                raise PeerLostError(
                    f"no anchor has written {path} within {timeout_s:g} s; look at the log of the anchor, and whether "
                    "this host sees the folder"
                )
            time.sleep(POLL_S)
        try:
            return cls(**json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise DataError(f"{path} is no meeting place ({error}); start the run again") from error
