-- contract: older versions would not compare the parties of a ticket, nor refuse revoked tokens

-- The names that a requester and a voter go by where duties are separated, JSON arrays,
-- and the person of a voter ("" = its credential named none). Rows from before this
-- migration have their subject only.
ALTER TABLE approvals      ADD COLUMN parties TEXT NOT NULL DEFAULT '[]';
ALTER TABLE approval_votes ADD COLUMN parties TEXT NOT NULL DEFAULT '[]';
ALTER TABLE approval_votes ADD COLUMN person  TEXT NOT NULL DEFAULT '';

-- Tokens that are refused for ever, by the SHA-256 of their bytes in hexadecimal. at is
-- nanoseconds since 1970, by the wall clock. The directory of keys has the same list, so
-- that a restored database revives none.
CREATE TABLE revoked_tokens (
  sha256  TEXT    PRIMARY KEY CHECK (length(sha256) = 64),
  subject TEXT    NOT NULL,
  reason  TEXT    NOT NULL,
  at      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
