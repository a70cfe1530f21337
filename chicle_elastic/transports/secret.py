"""The job secret: what makes a process a party of the job.

Three uses, none of which shows the secret itself:

* a file that only its user can read, or its user and one group (`create`, `load`), or a variable of the environment,
* proofs: two ends of a connection show each other that they know it, before anything else is said (`proof`, used by
  `handshake`),
* signatures of JSON values that lie where others can write, such as the rendezvous store (`sign`, `verify`).

Every use hashes its own purpose along (HMAC-SHA256 over "chicle/1", purpose, content), so that what was made for one
is worth nothing for another.

A secret may have several keys while an operator changes it (`cluster.rendezvous.secret_watch`). It proves and signs
with all of them and accepts each of them, so two processes understand each other as long as they share a key.

What this does not give: bytes on the wire are neither encrypted nor authenticated after the proof. It keeps out a
process that can reach a port or the store, not one that can rewrite packets between two nodes. A signature has no age
either: a process that can write to the store can put an older signed value back, so values carry their own round
number.
"""

import hmac
import json
import os
import secrets
import stat
import struct
from pathlib import Path
from typing import Any

from chicle_elastic.disk_watch import asking
from chicle_elastic.errors import SecretError, UsageError

SECRET_BYTES = 32
MAX_KEYS = 4  # a change of the secret needs two
MAX_FILE_BYTES = 1024
PRIVATE_MODES = (0o600, 0o400)
GROUP_MODES = (0o640, 0o440)
"""So Kubernetes mounts a Secret for a process that is not root: root owns it, and the group of the pod reads it."""
MAX_SIGNED_BYTES = 1 << 20
MAC_BYTES = 32
MAX_SIGNATURES_BYTES = MAX_KEYS * (2 * MAC_BYTES + 1)  # before a signed value
_DOMAIN = b"chicle/1"


class JobSecret:
    """The secret of one job. It never shows in a repr, and it cannot be pickled. Raises UsageError when a key is
    shorter.

    Args:
        keys: At least 32 random bytes each.
    """

    __slots__ = ("_keys",)

    def __init__(self, *keys: bytes) -> None:
        for key in keys:
            if len(key) < SECRET_BYTES:
                raise UsageError(
                    f"a job secret of {len(key)} bytes is too short; make one of {SECRET_BYTES} bytes with "
                    "JobSecret.create"
                )
        self._keys = keys

    @classmethod
    def generate(cls) -> "JobSecret":
        """A new random secret, in memory only."""
        return cls(secrets.token_bytes(SECRET_BYTES))

    @classmethod
    def create(cls, path: Path) -> "JobSecret":
        """Make a new secret and write it to a new file of mode 0600. The file appears with all its content or not at
        all, so that two processes may try at the same time. Raises UsageError when the file exists already, or cannot
        be written."""
        secret = cls.generate()
        secret.save(path)
        return secret

    def save(self, path: Path) -> None:
        """Write the secret to a new file of mode 0600, whole or not at all. Raises UsageError when the file exists
        already, or cannot be written."""
        draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with open(fd, "w", encoding="ascii") as file:
                    os.fchmod(file.fileno(), 0o600)  # whatever the umask says
                    file.writelines(key.hex() + "\n" for key in self._keys)
                os.link(draft, path)  # fails when the file exists, unlike a rename
            finally:
                draft.unlink()
        except FileExistsError:
            raise UsageError(f"the secret file {path} exists already; load it, or remove it first") from None
        except OSError as error:
            raise UsageError(
                f"the secret file {path} cannot be written ({error.strerror}); name a file in a folder of yours"
            ) from error

    @classmethod
    def load(cls, path: Path) -> "JobSecret":
        """Read a secret from a file that no other user can read.

        That is mode 0600 or 0400, owned by this user or by root; or 0640 or 0440 as well, when its group is one of this
        process (as Kubernetes mounts a Secret for a pod with an fsGroup). Raises UsageError when the file is missing,
        others could read it, or it holds no secret. Its content is never shown.
        """
        try:
            with asking(path), open(path, "rb") as file:
                require_private(path, os.fstat(file.fileno()), "secret file")
                content = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise UsageError(
                f"the secret file {path} cannot be read ({error.strerror}); every node of the job needs the file that "
                "the driver made, with the same content"
            ) from error
        text = content.decode("ascii", "replace") if len(content) <= MAX_FILE_BYTES else ""
        return cls.from_text(text, where=f"the secret file {path}")

    @classmethod
    def from_text(cls, text: str, *, where: str) -> "JobSecret":
        """The secret that a file or a variable holds, a key on each line. Raises UsageError when it is no secret. The
        text is never shown."""
        keys: list[bytes] = []
        lines = text.rstrip().split("\n")
        for number, line in enumerate(lines, 1):
            place = where if len(lines) == 1 else f"line {number} of {where}"
            try:
                key = bytes.fromhex(line)
            except ValueError:
                key = b""
            if len(key) < SECRET_BYTES:
                raise UsageError(
                    f"{place} has to hold at least {2 * SECRET_BYTES} hex digits and nothing else; copy the secret of "
                    "the driver again"
                )
            if key in keys or number > MAX_KEYS:
                raise UsageError(
                    f"{place} repeats a key, or is one too many: a job secret has at most {MAX_KEYS} keys, each once; "
                    "remove the line"
                )
            keys.append(key)
        return cls(*keys)

    @classmethod
    def load_or_create(cls, path: Path) -> "JobSecret":
        """The secret in the file, which is made when there is none; processes that do so at once get the same one.
        Raises UsageError as `create` and `load` do."""
        if not path.exists():
            try:
                return cls.create(path)
            except UsageError:
                if not path.exists():
                    raise
        return cls.load(path)

    def reload(self, path: Path) -> int | None:
        """Take the keys of a file in place of these. Raises UsageError when it holds no secret, or none of these keys:
        what was signed until now could not be verified any more; the keys stay as they are then. Returns how many there
        are now; None for the same ones as before."""
        keys = self.load(path)._keys
        if not {*keys} & {*self._keys}:
            raise UsageError(
                f"no line of the secret file {path} is a key of this job; add a new key as a further line, and remove "
                "the old one when all nodes have both"
            )
        before, self._keys = self._keys, keys
        return None if {*before} == {*keys} else len(keys)

    def proof(self, role: str, *transcript: bytes) -> bytes:
        """Return what shows that `role` knows the secret, in this transcript: 32 bytes for each key. The
        role is part of it, so that an answer cannot be sent back as one's own."""
        return b"".join(self._macs(f"proof/{role}", *transcript))

    def check_proof(self, proof: bytes, role: str, *transcript: bytes) -> bool:
        """Whether `proof` is what `role` had to send; the time that this takes says nothing about the right one."""
        shown = [proof[start : start + MAC_BYTES] for start in range(0, len(proof), MAC_BYTES)]
        return _have_common(shown, self._macs(f"proof/{role}", *transcript))

    def derive(self, context: str) -> str:
        """The text of a secret for one purpose, by which this one cannot be found out."""
        return "\n".join(mac.hex() for mac in self._macs(f"derive/{context}"))

    def sign(self, context: str, value: Any) -> bytes:
        """A JSON value with its signatures, as ASCII text. Raises UsageError when the value is not made of JSON values.

        Args:
            context: What the value is and where it belongs, e.g. "rendezvous/job-1/state"; `verify` needs the same.
            value: Made of JSON values; not NaN or infinity.
        """
        try:
            text = json.dumps(value, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"a value for {context!r} cannot be signed: {error}; use JSON values only") from error
        content = text.encode("ascii")
        return b",".join(self._signatures(context, content)) + b" " + content

    def has_signed(self, context: str, signed: bytes) -> bool:
        """Say whether a value has a signature by every key of this secret."""
        macs, _, content = signed.partition(b" ")
        return {*self._signatures(context, content)} <= {*macs.split(b",")}

    def verify(self, context: str, signed: bytes | str) -> Any:
        """The value that was signed. Nothing in it is looked at before the signature is known to be right. Raises
        SecretError when it was not signed with this secret for this context, or it is too long.

        Args:
            context: As given to `sign`.
            signed: What `sign` gave; any bytes may come.
        """
        if len(signed) > MAX_SIGNED_BYTES:
            raise SecretError(
                f"the value under {context!r} has {len(signed)} bytes, and none may have more than {MAX_SIGNED_BYTES}; "
                "it was not read"
            )
        content = signed.encode("utf-8", "replace") if isinstance(signed, str) else bytes(signed)
        macs, _, text = content.partition(b" ")
        if not _have_common(macs.split(b",", MAX_KEYS), self._signatures(context, text)):
            raise SecretError(
                f"the value under {context!r} ({len(content)} bytes) is not signed with the secret of this job; "
                "a process without the secret wrote it, or its writer belongs to another job: give every node the same "
                "secret file, and the job a run id of its own"
            )
        return json.loads(text)

    def _signatures(self, context: str, content: bytes) -> list[bytes]:
        return [mac.hex().encode("ascii") for mac in self._macs(f"sign/{context}", content)]

    def _macs(self, purpose: str, *parts: bytes) -> list[bytes]:
        """Return a code of each key."""
        # Lengths first: ("ab", "c") and ("a", "bc") are different things.
        content = b"".join(struct.pack("<Q", len(part)) + part for part in (_DOMAIN, purpose.encode(), *parts))
        return [hmac.digest(key, content, "sha256") for key in self._keys]

    def __repr__(self) -> str:
        return "JobSecret(...)"

    def __reduce__(self) -> str:
        raise UsageError("a job secret cannot be pickled; hand on the path of its file")


def _have_common(shown: list[bytes], expected: list[bytes]) -> bool:
    return any(hmac.compare_digest(one, other) for one in shown for other in expected)


def require_private(path: Path, status: os.stat_result, what: str) -> None:
    """Refuse a file that another user could have read or written. Raises UsageError when its type, owner, group or mode
    is not that of a private file; see `JobSecret.load`."""
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"the {what} {path} is not a regular file; name a file of mode 0600")
    if status.st_uid not in (os.geteuid(), 0):
        raise UsageError(
            f"the {what} {path} belongs to user {status.st_uid}, and this process runs as user {os.geteuid()}; "
            "use a file of your own"
        )
    if mode in GROUP_MODES and status.st_gid not in {os.getegid(), *os.getgroups()}:
        raise UsageError(
            f"the {what} {path} has mode {mode:04o} and belongs to group {status.st_gid}, which is none of this "
            "process; run chmod 600 on a new one (a Kubernetes Secret: set the pod's fsGroup, or defaultMode 0400)"
        )
    if mode not in PRIVATE_MODES + GROUP_MODES:
        raise UsageError(
            f"the {what} {path} has mode {mode:04o}, and others may have read it; run chmod 600 on a new one "
            "(a Kubernetes Secret: defaultMode 0400, or 0440 with an fsGroup)"
        )
