"""The first words on a connection: both ends prove that they know the job secret, before anything else is said.

    caller                                    listener
    HELLO {purpose, name, nonce}        ->
                                        <-    HELLO {purpose, name, nonce}
    PROOF over "caller" and both HELLOs ->                                      checked, or REFUSED and the end
                                        <-    PROOF over "listener" and both
    checked, or the end

The caller proves first: who only knocks on a port learns nothing that was made with the secret. Both HELLOs go into
both proofs, so a recorded proof is worth nothing (nonces), nor one sent back (roles), nor one of another service of the
same job (purposes), and neither end can be given another name on the way.
"""

import secrets
import socket
from typing import Any

from chicle_elastic.errors import ProtocolError, SecretError
from chicle_elastic.transports import exchange, wire
from chicle_elastic.transports.exchange import Deadline
from chicle_elastic.transports.secret import MAC_BYTES, MAX_KEYS, JobSecret
from chicle_elastic.transports.wire import Kind

NONCE_BYTES = 32
HELLO_BYTES = 512
MAX_NAME_CHARS = 128

_HELLO = {Kind.HELLO: HELLO_BYTES, Kind.REFUSED: wire.REASON_BYTES}
_PROOF = {Kind.PROOF: MAC_BYTES * MAX_KEYS, Kind.REFUSED: wire.REASON_BYTES}


def prove_as_caller(
    sock: socket.socket, secret: JobSecret, deadline: Deadline, *, purpose: str, name: str, peer: str
) -> str:
    """Greet the process that listens at the other end. Raises SecretError when the two ends do not have the same
    secret, ProtocolError when the other end is no agent, of another version, or serves another purpose, PeerLostError
    when it is gone or silent. Returns the name of the other end.

    Args:
        purpose: What the connection is for; both ends have to say the same.
    """
    ours = _hello(purpose, name)
    exchange.send_frame(sock, ours, deadline, peer=peer)
    try:
        theirs, their_name = _receive_hello(sock, deadline, purpose=purpose, peer=peer)
        proof = secret.proof("caller", ours, theirs)
        exchange.send_frame(sock, wire.pack_header(Kind.PROOF, len(proof)) + proof, deadline, peer=peer)
        if not secret.check_proof(_receive_proof(sock, deadline, peer=peer), "listener", ours, theirs):
            raise SecretError(
                f"{peer} did not prove the secret of this job and was told nothing; give every node the same secret "
                "file, and look at which program uses that address"
            )
    except wire.RefusedError as error:
        if error.error == SecretError.__name__:
            raise SecretError(f"{error}; give every node the same secret file") from error
        raise
    return their_name


def prove_as_listener(
    sock: socket.socket, secret: JobSecret, deadline: Deadline, *, purpose: str, name: str, peer: str
) -> str:
    """Let the caller prove the secret, then prove it too. On failure the caller is told why. Returns the name of the
    caller. Raises SecretError when the caller did not prove the secret, ProtocolError when it broke the protocol, or
    speaks another version, PeerLostError when it is gone or silent."""
    try:
        theirs, their_name = _receive_hello(sock, deadline, purpose=purpose, peer=peer)
        ours = _hello(purpose, name)
        exchange.send_frame(sock, ours, deadline, peer=peer)
        if not secret.check_proof(_receive_proof(sock, deadline, peer=peer), "caller", theirs, ours):
            raise SecretError(f"{peer} (it calls itself {their_name!r}) did not prove the secret of this job")
        proof = secret.proof("listener", theirs, ours)
        exchange.send_frame(sock, wire.pack_header(Kind.PROOF, len(proof)) + proof, deadline, peer=peer)
    except wire.RefusedError as error:
        raise ProtocolError(f"{peer} refused before it had proven the secret: {error}") from error
    except ProtocolError as error:
        exchange.send_frame(sock, wire.pack_refusal(error), deadline, peer=peer)
        raise
    return their_name


def _hello(purpose: str, name: str) -> bytes:
    nonce = secrets.token_bytes(NONCE_BYTES).hex()
    return wire.pack_json(Kind.HELLO, {"purpose": purpose, "name": name, "nonce": nonce})


def _receive_hello(sock: socket.socket, deadline: Deadline, *, purpose: str, peer: str) -> tuple[bytes, str]:
    """The whole frame, which goes into the proofs, and the name in it."""
    kind, num_bytes = exchange.receive_header(sock, _HELLO, deadline, peer=peer)
    payload = bytes(exchange.receive_payload(sock, num_bytes, deadline, peer=peer))
    hello = wire.unpack_json(kind, payload, peer=peer)
    name = _text(hello, "name")
    if name is None or _text(hello, "nonce") is None or len(name) > MAX_NAME_CHARS:
        raise ProtocolError(f"{peer} sent a greeting without a name or a nonce; it is no agent of this version")
    if hello.get("purpose") != purpose:
        raise ProtocolError(
            f"{peer} ({name!r}) speaks of {str(hello.get('purpose'))[:MAX_NAME_CHARS]!r} on a connection for "
            f"{purpose!r}; one of the two has the wrong address"
        )
    return wire.pack_header(kind, num_bytes) + payload, name


def _receive_proof(sock: socket.socket, deadline: Deadline, *, peer: str) -> bytes:
    _, num_bytes = exchange.receive_header(sock, _PROOF, deadline, peer=peer)
    return bytes(exchange.receive_payload(sock, num_bytes, deadline, peer=peer))


def _text(content: Any, key: str) -> str | None:
    value = content.get(key) if isinstance(content, dict) else None
    return value if isinstance(value, str) else None
