"""Key of a run's private data: in a file of its own, so that the record can be passed on without a print of the data in it."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradleak.auditing.fingerprint import fingerprint
from gradleak.results.errors import record_stays
from gradleak.results.files import write_file

PRIVATE_FILE = ".private-data"


@dataclass(frozen=True, kw_only=True)
class DataKey:
    """A random key, and a print of the private data under it.

    Attributes:
        key: hexadecimal.
        hash: of the data that it was made for; None for a new key.
    """

    key: str
    hash: str | None

    @classmethod
    def of(cls, folder: Path) -> DataKey:
        """The key that lies beside a record; a new one, kept nowhere yet, where there is none.

        Raises:
            PlanError: if the file is damaged.
        """
        file = folder / PRIVATE_FILE
        if not file.exists():
            return cls(key=secrets.token_hex(16), hash=None)
        try:
            known = json.loads(file.read_bytes())
            key, print_ = known["key"], known["hash"]
        except (ValueError, KeyError, TypeError, RecursionError):
            key = print_ = None
        if not isinstance(key, str) or not isinstance(print_, str):
            raise record_stays(file, "expected the key of the private data of the record beside it, got something else")
        return cls(key=key, hash=print_)

    def keep(self, folder: Path, data: object) -> None:
        """Write the key, and the print of these data under it."""
        write_file(folder / PRIVATE_FILE, json.dumps({"key": self.key, "hash": fingerprint(self.key, data)}))

    def fits(self, data: object) -> bool:
        """True if the key was made for these data."""
        return self.hash == fingerprint(self.key, data)

    def check(self, folder: Path, data: object) -> None:
        """Compare private data with those of the record in the folder.

        Raises:
            PlanError: if they are others, or the key is gone, so that nobody can tell.
        """
        if self.hash is None:
            raise record_stays(
                folder / PRIVATE_FILE,
                "expected the key of the private data of the record beside it, got no such file, so that nobody can tell whether "
                "the record is about these data",
            )
        if not self.fits(data):
            raise record_stays(folder, "the record there is about other data or other updates")

    def sealed(self, header: Mapping[str, Any]) -> dict[str, Any]:
        """A header with a checksum under the key: whoever edits the header, and its checksum with it, cannot make this one."""
        content = {
            key: value for key, value in header.items() if key not in ("type", "schema", "checksum", "keyed_checksum")
        }
        text = json.dumps(content, allow_nan=False, sort_keys=True).encode()
        return content | {"keyed_checksum": hmac.new(self.key.encode(), text, hashlib.sha256).hexdigest()[:32]}

    def check_header(self, file: Path, header: Mapping[str, Any]) -> None:
        """Compare a header with its checksum under the key.

        Raises:
            PlanError: if one of the two was changed.
        """
        if header.get("keyed_checksum") != self.sealed(header)["keyed_checksum"]:
            raise record_stays(
                file,
                f"the header of the record and {PRIVATE_FILE} beside it do not belong together: one of the two was edited, or is "
                "that of another run",
            )

    def hidden(self, numbers: Sequence[float], place: str) -> str:
        """Numbers that nobody reads without the key.

        Args:
            numbers: any.
            place: what they are, once under a key.
        """
        return self._mixed(struct.pack(f"<{len(numbers)}d", *numbers), place).hex()

    def shown(self, text: str, place: str) -> list[float]:
        """The numbers that `hidden` made this text of.

        Raises:
            ValueError: for another text.
        """
        content = bytes.fromhex(text)
        if len(content) % 8:
            raise ValueError("expected numbers of eight bytes")
        return list(struct.unpack(f"<{len(content) // 8}d", self._mixed(content, place)))

    def _mixed(self, content: bytes, place: str) -> bytes:
        stream = hashlib.shake_256(f"{self.key} {place}".encode()).digest(len(content))
        return bytes(one ^ other for one, other in zip(content, stream, strict=True))
