-- expand: the first tables

-- A payment is here, signed, before it is sent. Amounts are whole numbers of smallest
-- units as text. A key never pays twice, and no two payments that may be in a block have
-- one nonce.
CREATE TABLE payments (
    id              TEXT PRIMARY KEY,
    time            TEXT NOT NULL,
    idempotency_key TEXT NOT NULL UNIQUE,
    chain_id        INTEGER NOT NULL,
    source          TEXT NOT NULL,
    nonce           INTEGER NOT NULL,
    asset           TEXT NOT NULL,
    units           TEXT NOT NULL,
    decimals        INTEGER NOT NULL,
    destination     TEXT NOT NULL,
    recipient       TEXT NOT NULL,
    raw             BLOB NOT NULL,
    hash            TEXT NOT NULL,
    fee             TEXT NOT NULL,
    status          TEXT NOT NULL,
    reason          TEXT NOT NULL,
    accepted        INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX payments_nonce ON payments (chain_id, source, nonce) WHERE status NOT IN ('refused', 'replaced');
CREATE INDEX payments_open ON payments (nonce) WHERE status IN ('unknown', 'pending');
