-- expand: the first tables

-- Amounts are exact decimals as text; sums are made in Go, never by SQL.
CREATE TABLE transactions (
    id          TEXT PRIMARY KEY,
    time        TEXT NOT NULL,
    asset       TEXT NOT NULL,
    amount      TEXT NOT NULL,
    source      TEXT NOT NULL,
    destination TEXT NOT NULL
) STRICT;

CREATE TABLE entries (
    id            INTEGER PRIMARY KEY,
    transaction_id TEXT NOT NULL REFERENCES transactions (id),
    account       TEXT NOT NULL,
    asset         TEXT NOT NULL,
    amount        TEXT NOT NULL
) STRICT;

CREATE INDEX entries_account ON entries (account, asset);

-- The running sum of the entries of an account, kept in the same transaction.
CREATE TABLE balances (
    account TEXT NOT NULL,
    asset   TEXT NOT NULL,
    amount  TEXT NOT NULL,
    PRIMARY KEY (account, asset)
) STRICT;
