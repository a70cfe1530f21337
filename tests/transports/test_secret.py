"""The job secret: private files, proofs for one role and one exchange, signatures for one context."""

import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from chicle_elastic.errors import SecretError, UsageError
from chicle_elastic.transports.secret import MAX_SIGNED_BYTES, JobSecret

VALUE = {"round": 3, "members": ["n1", "ä\n"], "lead": None, "load": 0.25}


def assert_equal_secrets(one: JobSecret, other: JobSecret) -> None:
    """The same key: what one signs, the other verifies."""
    assert other.verify("test", one.sign("test", VALUE)) == VALUE


class TestFiles:
    """Only the user of the job can read them."""

    def test_a_created_file_is_private_and_loads(self, tmp_path):
        """Whatever the umask is."""
        old = os.umask(0)
        try:
            created = JobSecret.create(tmp_path / "secret")
        finally:
            os.umask(old)
        assert (tmp_path / "secret").stat().st_mode & 0o7777 == 0o600
        assert_equal_secrets(created, JobSecret.load(tmp_path / "secret"))
        assert [path.name for path in tmp_path.iterdir()] == ["secret"]

    def test_a_file_is_not_overwritten(self, tmp_path):
        """Another job may be using it."""
        created = JobSecret.create(tmp_path / "secret")
        with pytest.raises(UsageError, match="exists already; load it"):
            JobSecret.create(tmp_path / "secret")
        assert_equal_secrets(created, JobSecret.load(tmp_path / "secret"))
        assert [path.name for path in tmp_path.iterdir()] == ["secret"]

    def test_agents_that_start_together_get_one_secret(self, tmp_path):
        """One of them creates it, the others load it."""
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda _: JobSecret.load_or_create(tmp_path / "secret"), range(16)))
        for other in found[1:]:
            assert_equal_secrets(found[0], other)

    @pytest.mark.parametrize("mode", [0o644, 0o660, 0o604, 0o700, 0o444, 0o460])
    def test_a_file_that_others_may_read_is_refused(self, tmp_path, mode):
        """With the mode, and what to do."""
        JobSecret.create(tmp_path / "secret")
        (tmp_path / "secret").chmod(mode)
        with pytest.raises(UsageError, match=f"has mode {mode:04o}, and others may have read it; run chmod 600"):
            JobSecret.load(tmp_path / "secret")

    def test_a_read_only_file_behind_a_link_is_good(self, tmp_path):
        """This is how Kubernetes shows a Secret."""
        created = JobSecret.create(tmp_path / "data")
        (tmp_path / "data").chmod(0o400)
        (tmp_path / "secret").symlink_to("data")
        assert_equal_secrets(created, JobSecret.load(tmp_path / "secret"))

    @pytest.mark.parametrize("mode", [0o440, 0o640])
    def test_a_file_that_a_group_of_ours_reads_is_good(self, tmp_path, mode):
        """As Kubernetes mounts a Secret for a pod with an fsGroup; another group is refused."""
        created = JobSecret.create(tmp_path / "secret")
        (tmp_path / "secret").chmod(mode)
        assert_equal_secrets(created, JobSecret.load(tmp_path / "secret"))
        if os.geteuid() == 0:
            os.chown(tmp_path / "secret", -1, 54321)
            with pytest.raises(UsageError, match=f"mode {mode:04o} and belongs to group 54321.*fsGroup"):
                JobSecret.load(tmp_path / "secret")

    def test_a_secret_of_the_environment_is_the_digits_of_the_file(self, tmp_path):
        """And what is none is not shown."""
        created = JobSecret.create(tmp_path / "secret")
        text = (tmp_path / "secret").read_text()
        assert_equal_secrets(created, JobSecret.from_text(text, where="CHICLE_SECRET"))
        with pytest.raises(UsageError, match=r"^CHICLE_SECRET has to hold at least 64 hex digits") as raised:
            JobSecret.from_text("cafe", where="CHICLE_SECRET")
        assert "cafe" not in str(raised.value)

    def test_a_derived_key_is_one_of_its_purpose(self, secret):
        """And says nothing about the others, or about the secret."""
        keys = {secret.derive("round 1"), secret.derive("round 2"), secret.proof("round 1").hex()}
        assert len(keys) == 3
        assert {len(key) for key in keys} == {64}

    def test_a_file_of_another_user_is_refused(self, tmp_path):
        """Somebody who can write it knows the secret."""
        if os.geteuid() != 0:
            pytest.skip("only root can give files away")
        JobSecret.create(tmp_path / "secret")
        os.chown(tmp_path / "secret", 12345, -1)
        with pytest.raises(UsageError, match="belongs to user 12345"):
            JobSecret.load(tmp_path / "secret")

    @pytest.mark.parametrize("content", [b"", b"cafe", b"x" * 64, b"\xff" * 64, b"ab" * 4000])
    def test_a_file_without_a_secret_is_refused_without_being_shown(self, tmp_path, content):
        """It may be somebody's secret of another kind."""
        path = tmp_path / "secret"
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(UsageError, match="at least 64 hex digits") as raised:
            JobSecret.load(path)
        assert "cafe" not in str(raised.value)

    def test_a_missing_file_says_who_makes_it(self, tmp_path):
        """Also where it cannot be made, and where a folder is in its place."""
        with pytest.raises(UsageError, match=r"cannot be read \(No such file.*the driver made"):
            JobSecret.load(tmp_path / "secret")
        with pytest.raises(UsageError, match="cannot be written"):
            JobSecret.load_or_create(tmp_path / "no-folder" / "secret")
        with pytest.raises(UsageError, match="cannot be read"):
            JobSecret.load(tmp_path)


OLD, NEW, NEWEST = ("ab" * 32 + "\n", "cd" * 32 + "\n", "ef" * 32 + "\n")


class TestSeveralKeys:
    """While a secret is changed, processes may know other keys than the rest."""

    @pytest.mark.parametrize(
        ("ours", "theirs", "is_known"),
        [
            (OLD, OLD + NEW, True),
            (NEW + OLD, OLD + NEW, True),
            (OLD + NEW, NEW, True),
            (OLD + NEW, NEW + NEWEST, True),
            (OLD, NEW, False),
            (OLD + NEW, NEWEST, False),
        ],
    )
    def test_one_key_that_both_know_is_enough(self, ours, theirs, is_known):
        """For proofs, signatures and keys of rounds, in both directions."""
        one, other = (JobSecret.from_text(text, where="a test") for text in (ours, theirs))
        for teller, hearer in ((one, other), (other, one)):
            assert hearer.check_proof(teller.proof("caller", b"hi"), "caller", b"hi") is is_known
            rounds = [JobSecret.from_text(secret.derive("round"), where="a test") for secret in (teller, hearer)]
            for signer, reader in ((teller, hearer), rounds):
                signed = signer.sign("state", VALUE)
                if is_known:
                    assert reader.verify("state", signed) == VALUE
                else:
                    with pytest.raises(SecretError):
                        reader.verify("state", signed)
        assert one.has_signed("state", other.sign("state", VALUE)) is ({*ours.split()} <= {*theirs.split()})

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            (OLD + "cafe\n", 2),
            (OLD + "\n" + NEW, 2),
            ("\n" + OLD, 1),
            (OLD + NEW + "x" * 64, 3),
            (OLD + NEW + OLD.upper(), 3),
            ("".join(f"{number:064x}\n" for number in range(5)), 5),
        ],
        ids=["short", "empty", "empty first", "no number", "twice", "too many"],
    )
    def test_a_bad_line_is_named_and_changes_nothing(self, tmp_path, text, line):
        """And not shown."""
        (tmp_path / "secret").touch(0o600)
        (tmp_path / "secret").write_text(text)
        known = JobSecret.from_text(OLD, where="a test")
        with pytest.raises(UsageError, match=f"^line {line} of the secret file {tmp_path / 'secret'}") as raised:
            known.reload(tmp_path / "secret")
        assert not any(shown in str(raised.value) for shown in text.split())
        assert_equal_secrets(known, JobSecret.from_text(OLD, where="a test"))

    def test_keys_are_taken_from_a_file_that_has_one_of_them(self, tmp_path):
        """Without a key of before, nothing that was signed could be verified."""
        known = JobSecret.from_text(OLD, where="a test")
        (tmp_path / "secret").touch(0o600)
        taken = []
        for text in (OLD, OLD + NEW, NEW + OLD, NEW):
            (tmp_path / "secret").write_text(text)
            taken.append(known.reload(tmp_path / "secret"))
        assert taken == [None, 2, None, 1]
        (tmp_path / "secret").write_text(OLD)
        with pytest.raises(UsageError, match=r"no line of the secret file .* is a key of this job"):
            known.reload(tmp_path / "secret")
        assert_equal_secrets(known, JobSecret.from_text(NEW, where="a test"))


class TestSecrecy:
    """The secret shows nowhere."""

    def test_it_is_not_printed_or_pickled(self, secret, tmp_path):
        """Logs and crash reports hold reprs."""
        secret.save(tmp_path / "secret")
        key = (tmp_path / "secret").read_text().strip()
        assert key not in repr(secret) + str(secret) + f"{secret}"
        with pytest.raises(UsageError, match="cannot be pickled"):
            pickle.dumps(secret)

    def test_a_short_key_is_refused(self):
        """A password is no secret."""
        with pytest.raises(UsageError, match="of 12 bytes is too short"):
            JobSecret(b"correct hors")


class TestProofs:
    """A proof is good for one role and one exchange."""

    def test_it_convinces_who_has_the_secret(self, secret):
        """And nobody with another."""
        proof = secret.proof("caller", b"hello", b"hi")
        assert len(proof) == 32
        assert secret.check_proof(proof, "caller", b"hello", b"hi")
        assert not JobSecret.generate().check_proof(proof, "caller", b"hello", b"hi")

    @pytest.mark.parametrize(
        ("role", "transcript"),
        [
            ("listener", (b"hello", b"hi")),
            ("caller", (b"hi", b"hello")),
            ("caller", (b"hell", b"ohi")),
            ("caller", (b"hello", b"hi", b"")),
            ("caller", (b"hello",)),
        ],
    )
    def test_it_is_worth_nothing_elsewhere(self, secret, role, transcript):
        """Not sent back, not for another exchange, not with the bytes cut elsewhere."""
        assert not secret.check_proof(secret.proof("caller", b"hello", b"hi"), role, *transcript)


class TestSignatures:
    """A signed value is believed where it belongs, and looked at nowhere else."""

    def test_a_signed_value_comes_back(self, secret):
        """As bytes and as text, which is how stores give it."""
        signed = secret.sign("rendezvous/job/state", VALUE)
        assert secret.verify("rendezvous/job/state", signed) == VALUE
        assert secret.verify("rendezvous/job/state", signed.decode("ascii")) == VALUE

    def test_every_changed_byte_is_noticed(self, secret):
        """In the signature and in the value."""
        signed = secret.sign("state", VALUE)
        for position in range(len(signed)):
            forged = bytearray(signed)
            forged[position] ^= 1
            with pytest.raises(SecretError, match="under 'state'"):
                secret.verify("state", bytes(forged))

    @pytest.mark.parametrize(
        "forged",
        [b"", b" ", b"{}", pickle.dumps({"a": 1}), json.dumps(VALUE), b"0" * 64 + b" {}", "ä" * 64 + " {}", "\udc80"],
        ids=["empty", "space", "bare", "pickle", "json", "zeros", "umlauts", "surrogate"],
    )
    def test_what_nobody_signed_is_refused(self, secret, forged):
        """Whatever bytes lie there."""
        with pytest.raises(SecretError, match=r"is not signed with the secret of this job.*the same secret file"):
            secret.verify("state", forged)

    def test_a_signature_is_good_for_one_context_and_one_job(self, secret):
        """The state of a round cannot be put under another key."""
        signed = secret.sign("job/1", VALUE)
        with pytest.raises(SecretError, match="under 'job/2'"):
            secret.verify("job/2", signed)
        with pytest.raises(SecretError, match="under 'job/1'"):
            JobSecret.generate().verify("job/1", signed)

    def test_a_proof_is_no_signature(self, secret):
        """The two uses are apart, although both are the same kind of hash."""
        proof = secret.proof("sign/state", b"{}")
        with pytest.raises(SecretError):
            secret.verify("state", proof.hex().encode() + b" {}")

    def test_a_giant_is_not_read(self, secret):
        """A stranger who can write to the store must not cost time either."""
        with pytest.raises(SecretError, match=f"has {MAX_SIGNED_BYTES + 1} bytes"):
            secret.verify("state", b"x" * (MAX_SIGNED_BYTES + 1))

    @pytest.mark.parametrize("value", [{1, 2}, float("nan"), object()])
    def test_only_json_is_signed(self, secret, value):
        """A NaN would be JSON for nobody else."""
        with pytest.raises(UsageError, match="a value for 'state' cannot be signed"):
            secret.sign("state", value)
